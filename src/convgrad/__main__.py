"""`python -m convgrad`, the same as the command `convgrad`."""

import sys

from convgrad.cli import main

sys.exit(main())
