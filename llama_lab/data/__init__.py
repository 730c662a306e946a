"""Text on its way to the model: corpora, tokenizers, the token store and the batches."""
