"""What runs inside the server's processes: standard library only, Python 3.10 to 3.13, copied as plain files.

On the host this folder is the package `eaglediag_payload`; nothing in it imports the rest of eaglediag.
"""
