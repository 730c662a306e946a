"""Token ids on disk: what a store is made from, how it is made, how it is found again."""
