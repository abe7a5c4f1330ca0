"""`python -m replicas.simulator`."""

import sys

from replicas.simulator import main, parse_options

sys.exit(main(parse_options(sys.argv[1:])))
