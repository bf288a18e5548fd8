// The emulated device has no cuDNN: what stands in its place is in the library too.
#include "kernels/cuda/library/cudnn/absent.cpp"
