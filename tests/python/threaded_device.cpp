// SPDX-License-Identifier: Apache-2.0
// A device "fpga" in the CPU's memory: PyTorch runs its backward in a thread of its own, as that of a GPU.

#include <ATen/EmptyTensor.h>
#include <Python.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using c10::DispatchKey;

c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::FPGA,
                                          new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::FPGA>);

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType>, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat>) {
  c10::DataPtr memory = c10::GetCPUAllocator()->allocate(4096);
  memory.unsafe_set_device({c10::DeviceType::FPGA, 0});
  const auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 4096,
                                                             std::move(memory), c10::GetCPUAllocator(), false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(DispatchKey::FPGA), caffe2::TypeMeta::Make<float>());
  made.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return made;
}

PyModuleDef module = {PyModuleDef_HEAD_INIT, "threaded_device", "", -1, nullptr};

}  // namespace

TORCH_LIBRARY_IMPL(aten, FPGA, library) { library.impl("empty.memory_format", empty); }

PyMODINIT_FUNC PyInit_threaded_device() { return PyModule_Create(&module); }
