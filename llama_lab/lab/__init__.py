"""Studies: arms times seeds under one budget, and the conclusions that they allow."""
