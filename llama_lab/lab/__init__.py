<<<<<<< HEAD
"""Controlled studies: arms times seeds, run alike, compared with statistics, and reported."""
=======
"""Studies: arms times seeds under one budget, and the conclusions that they allow."""
>>>>>>> main
