"""Arrays in, arrays out: products and convolutions that compilers do not find themselves.

- `products`: matrix products at a given precision.
- `linear`: maps that are linear in two arguments, with both derivative modes.
- `convolution`: convolutions as matrix products, and pooling by blocks.
- `winograd`: convolutions of 3 by 3 with fewer multiplications.
- `low_bit`: products and convolutions of numbers of a few bits.
"""
