#pragma once

namespace convtime::mlp {

/// Does nothing: launched with all of a multiprocessor's shared memory, it shows how large a
/// cluster of such blocks can be.
__global__ void fill_kernel() {}

}  // namespace convtime::mlp
