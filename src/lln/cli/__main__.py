"""`python -m lln.cli`, for where the `lln` script is not on the path."""

from lln.cli import main

main()
