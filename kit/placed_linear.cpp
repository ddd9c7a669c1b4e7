// SPDX-License-Identifier: Apache-2.0
#include "kit/placed_linear.h"

namespace flashmask::check {

PlacedLinearTensors::PlacedLinearTensors(const LinearTensors& host, Device device)
    : device_(device), forward_(host.forward()), backward_(host.backward()) {
  if (device.type == DeviceType::cpu) return;
  use_device(device);
  LinearForwardTensors& f = forward_;
  LinearBackwardTensors& b = backward_;
  for (TensorView* each : {&f.q, &f.k, &f.v, &f.log_forget, &f.log_input}) place(*each, false);
  place(f.initial, false);
  place(f.o, true);
  place(f.final, true);
  b.q = f.q, b.k = f.k, b.v = f.v, b.log_forget = f.log_forget, b.log_input = f.log_input;
  b.initial = f.initial, b.o = f.o;
  place(b.grad_o, false);
  place(b.grad_final, false);
  for (TensorView* each : {&b.grad_q, &b.grad_k, &b.grad_v, &b.grad_log_forget, &b.grad_log_input}) place(*each, true);
  place(b.grad_initial, true);
}

void PlacedLinearTensors::place(TensorView& view, bool result) {
  if (!view.present()) return;
  const DeviceTensor& copy = copies_.emplace_back(view, device_);
  if (result) results_.push_back(&copy);
  view = copy.view();
}

void PlacedLinearTensors::place(LinearStates& states, bool result) {
  for (TensorView* each : {&states.state, &states.normalizer, &states.log_scale}) place(*each, result);
}

void PlacedLinearTensors::fetch() const {
  if (device_.type == DeviceType::cpu) return;
  synchronize_device();
  for (const DeviceTensor* each : results_) each->download();
}

}  // namespace flashmask::check
