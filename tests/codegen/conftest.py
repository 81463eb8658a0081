"""All of the compiler is imported before any test breaks a part of it on purpose.

Kinds of plans are imported when they are first met. One that is met while a function is replaced would take the
replacement's name into its own module, and keep it for all tests that follow.
"""

from importlib import import_module
from pkgutil import walk_packages

import convgrad.codegen
import convgrad.plan

for package in (convgrad.plan, convgrad.codegen):
    for found in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(found.name)
