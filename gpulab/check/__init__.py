"""Judges kernels that learners submit; what a submission is: ``submission.py``."""
