"""Old releases of numpy ask `lscpu` when scipy first imports them; here that is before the tier forbids processes."""

import scipy.stats  # noqa: F401
