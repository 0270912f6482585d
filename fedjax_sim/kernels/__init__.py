"""Arrays in, arrays out: products and convolutions that compilers do not find themselves.

- `products`: matrix products with few outputs, with a fast gradient.
- `linear`: linear functions with a transpose of our own, for both derivative modes.
- `convolution`: convolutions as matrix products, and pooling.
- `winograd`: convolutions of 3 by 3 with fewer multiplications.
- `rounding`: rounding to few bits, and gradients through it.
"""
