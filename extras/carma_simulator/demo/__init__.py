"""`carma demo`: real daemons and processes on emulated GPUs, for somebody who has none."""
