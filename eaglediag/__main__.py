"""`python -m eaglediag`."""

from eaglediag.cli import main

main()
