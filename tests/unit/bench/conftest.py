"""numpy asks `lscpu` when first imported: before the tier forbids processes."""

import scipy.stats

_IMPORTED = scipy
