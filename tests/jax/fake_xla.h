// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <xla/ffi/api/c_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// What XLA returns where it fails.
struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};

/// A pool of threads that starts one for each task; tasks that are held back start when released.
struct XLA_FFI_ExecutionContext {
  std::int64_t thread_count = 4;  // 0: XLA has no pool
  bool holds_tasks_back = false;
  bool refuses_tasks = false;
  std::mutex mutex{};
  std::vector<std::thread> threads{};
  std::deque<std::pair<XLA_FFI_Task*, void*>> held{};

  void start(XLA_FFI_Task* task, void* data) { threads.emplace_back(task, data); }
  void release_all() {
    for (const auto& [task, data] : held) start(task, data);
    held.clear();
  }
  ~XLA_FFI_ExecutionContext() {
    release_all();
    for (std::thread& thread : threads) thread.join();
  }
};

namespace flashmask::jax {

/// One call by a stand-in for XLA, whose operands, results and attributes a test adds.
class FakeCall {
 public:
  explicit FakeCall(XLA_FFI_ExecutionContext& context) : context_(context) {}

  void operand(XLA_FFI_DataType dtype, void* data, std::vector<std::int64_t> dims) {
    add(operands_, dtype, data, std::move(dims));
  }
  void result(XLA_FFI_DataType dtype, void* data, std::vector<std::int64_t> dims) {
    add(results_, dtype, data, std::move(dims));
  }
  std::map<std::string, std::int64_t> integers{};
  std::map<std::string, double> numbers{};
  std::map<std::string, std::string> texts{};

  /// Runs a handler; "" where it succeeds, else the message, with the code in error_code.
  template <typename Handler>
  std::string run(Handler* handler) {
    return with_frame([&](XLA_FFI_CallFrame& frame) {
      XLA_FFI_Error* const error = handler(&frame);
      if (error == nullptr) return std::string();
      error_code = error->code;
      std::string message = error->message;
      delete error;
      return message;
    });
  }
  XLA_FFI_Error_Code error_code = XLA_FFI_Error_Code_OK;

  /// Calls use(frame).
  template <typename Use>
  auto with_frame(Use&& use) {
    static const XLA_FFI_Api api = table();
    std::deque<XLA_FFI_ByteSpan> spans;
    std::deque<XLA_FFI_Scalar> scalars;
    std::vector<XLA_FFI_ByteSpan*> names;
    std::vector<void*> values;
    std::vector<XLA_FFI_AttrType> types;
    const auto add_attribute = [&](const std::string& name, XLA_FFI_AttrType type, void* value) {
      names.push_back(&spans.emplace_back(XLA_FFI_ByteSpan{name.data(), name.size()}));
      values.push_back(value);
      types.push_back(type);
    };
    const auto scalar = [&](const std::string& name, XLA_FFI_DataType dtype, void* value) {
      add_attribute(name, XLA_FFI_AttrType_SCALAR, &scalars.emplace_back(XLA_FFI_Scalar{dtype, value}));
    };
    for (auto& [name, value] : integers) scalar(name, XLA_FFI_DataType_S64, &value);
    for (auto& [name, value] : numbers) scalar(name, XLA_FFI_DataType_F64, &value);
    for (const auto& [name, value] : texts)
      add_attribute(name, XLA_FFI_AttrType_STRING, &spans.emplace_back(XLA_FFI_ByteSpan{value.data(), value.size()}));
    std::vector<void*> operands = pointers(operands_), results = pointers(results_);
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.ctx = &context_;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args.size = static_cast<std::int64_t>(operands.size());
    frame.args.args = operands.data();
    frame.rets.size = static_cast<std::int64_t>(results.size());
    frame.rets.rets = results.data();
    frame.attrs.size = static_cast<std::int64_t>(names.size());
    frame.attrs.names = names.data();
    frame.attrs.types = types.data();
    frame.attrs.attrs = values.data();
    return use(frame);
  }

 private:
  struct Array {
    std::vector<std::int64_t> dims;
    XLA_FFI_Buffer buffer;
  };

  static void add(std::deque<Array>& to, XLA_FFI_DataType dtype, void* data, std::vector<std::int64_t> dims) {
    Array& array = to.emplace_back(Array{std::move(dims), {}});
    array.buffer = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, dtype, data, static_cast<std::int64_t>(array.dims.size()),
                    array.dims.data()};
  }
  static std::vector<void*> pointers(std::deque<Array>& arrays) {
    std::vector<void*> all;
    for (Array& array : arrays) all.push_back(&array.buffer);
    return all;
  }

  static XLA_FFI_Api table() {
    XLA_FFI_Api api{};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->errc, args->message};
    };
    api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->message.c_str();
    };
    api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
    api.XLA_FFI_ThreadPool_NumThreads = [](XLA_FFI_ThreadPool_NumThreads_Args* args) -> XLA_FFI_Error* {
      *args->num_threads = args->ctx->thread_count;
      return args->ctx->thread_count == 0 ? new XLA_FFI_Error{XLA_FFI_Error_Code_UNIMPLEMENTED, "no pool"} : nullptr;
    };
    api.XLA_FFI_ThreadPool_Schedule = [](XLA_FFI_ThreadPool_Schedule_Args* args) -> XLA_FFI_Error* {
      XLA_FFI_ExecutionContext& context = *args->ctx;
      if (context.refuses_tasks) return new XLA_FFI_Error{XLA_FFI_Error_Code_UNAVAILABLE, "no thread"};
      const std::scoped_lock lock(context.mutex);
      if (context.holds_tasks_back)
        context.held.emplace_back(args->task, args->data);
      else
        context.start(args->task, args->data);
      return nullptr;
    };
    api.XLA_FFI_DeviceOrdinal_Get = [](XLA_FFI_DeviceOrdinal_Get_Args*) -> XLA_FFI_Error* {
      return new XLA_FFI_Error{XLA_FFI_Error_Code_INTERNAL, "there is no device"};
    };
    return api;
  }

  XLA_FFI_ExecutionContext& context_;
  std::deque<Array> operands_{}, results_{};
};

}  // namespace flashmask::jax
