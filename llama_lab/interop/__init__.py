"""Other programs' model files, read and written: Hugging Face folders, and llama2.c's."""
