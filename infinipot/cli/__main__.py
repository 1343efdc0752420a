"""python -m infinipot.cli"""

import sys

from infinipot.cli import main

sys.exit(main())
