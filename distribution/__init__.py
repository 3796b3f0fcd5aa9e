"""What becomes of a checkout when it is packaged: the program with its own interpreter, then deb, rpm and archive.

`scripts/build-packages` calls these modules in turn. Where each file goes on a machine is said in one place,
`scripts/install`; the packages hold what it lays out.
"""
