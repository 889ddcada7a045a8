"""Makes packages importable that SGLang imports but the embedded host does not install and never calls.

Python runs this file at start-up, as the first `sitecustomize` on PYTHONPATH. A tool that brings its own must run this
one too, as it must any user's.
"""

import import_stubs

import_stubs.install()
