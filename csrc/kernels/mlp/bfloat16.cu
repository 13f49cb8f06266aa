#include "kernels/mlp/kernels.cuh"

namespace convtime::mlp {

template Kernels kernels<__nv_bfloat16, 16>();
template Kernels kernels<__nv_bfloat16, 32>();
template Kernels kernels<__nv_bfloat16, 64>();
template Kernels kernels<__nv_bfloat16, 128>();

}  // namespace convtime::mlp
