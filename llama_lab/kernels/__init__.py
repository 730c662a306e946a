"""The study of kernels: two writings of one part, checked and timed against each other."""
