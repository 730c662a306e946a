"""Reports: the figures, tables and pages of a study, of a range test and of kernels."""
