// Times torch's ReLU from C++, without Python: on the GPU where there is one, else on the CPU.
#include <ATen/ATen.h>
#include <convtime/timing/time_op.h>

#include <iostream>

int main() {
  const auto device = convtime::cuda_available() ? at::kCUDA : at::kCPU;
  const at::Tensor x = at::randn({1 << 20}, at::device(device));
  std::cout << "relu on " << device << ": " << convtime::time_op([&] { at::relu(x); }) << '\n';
}
