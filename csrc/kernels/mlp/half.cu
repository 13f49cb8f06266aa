#include "kernels/mlp/kernels.cuh"

namespace convtime::mlp {

template Kernels kernels<__half, 16>();
template Kernels kernels<__half, 32>();
template Kernels kernels<__half, 64>();
template Kernels kernels<__half, 128>();

}  // namespace convtime::mlp
