// CudaDevice: an NVIDIA GPU as a Device, and the entry point that libofsdp_cuda.so exports.
//
// Streams are non-blocking: the legacy stream does not synchronize with them. Each memory region is
// one allocation before the first step: cudaMalloc, pinned host memory, or ncclMemAlloc for memory
// that ranks share, since NCCL opens only its own allocations to other ranks.
//
// [Note: workspaces] The plan aligns workspaces to 64 bytes, a cache line of the CPU. cuBLASLt and
// our kernels need 256, so LaunchedKernel asks for 192 bytes more and rounds the address up.
#include <algorithm>
#include <set>

#include "kernels/base/hash.h"
#include "kernels/core/device.h"
#include "kernels/core/device_build.h"
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/groups.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/libraries.h"
#include "kernels/cuda/device/streams.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kMinDriver = 12040;  // CUDA 12.4
constexpr size_t kAlignment = 256, kPlaced = 64;

class LaunchedKernel final : public Kernel {
 public:
  LaunchedKernel(const Device& device, std::unique_ptr<CudaKernel> kernel, const Problem& problem)
      : device_(device),
        kernel_(std::move(kernel)),
        inputs_(problem.inputs.size()),
        outputs_(problem.outputs.size()) {}
  size_t workspace_bytes() const override {
    const size_t bytes = kernel_->workspace_bytes();
    return bytes == 0 ? 0 : bytes + kAlignment - kPlaced;
  }

  Status run(const KernelArgs& args) override {
    const auto& step = static_cast<const DeviceStepContext&>(*args.step);
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = args.inputs[i].data;
    for (size_t i = 0; i < outputs_.size(); ++i) outputs_[i] = args.outputs[i].data;
    const auto workspace = reinterpret_cast<uintptr_t>(args.workspace);
    const Launch launch{
        inputs_,      outputs_,     reinterpret_cast<void*>(round_up(workspace, kAlignment)),
        step.numbers, step.samples, step.fault,
        step.node};
    ofsdp_stream* const stream = step.stream != nullptr ? step.stream : device_.compute();
    return checked(kernel_->run(raw(stream), launch), "a kernel: launch");
  }

 private:
  static uintptr_t round_up(uintptr_t at, size_t to) { return (at + to - 1) / to * to; }

  const Device& device_;
  std::unique_ptr<CudaKernel> kernel_;
  std::vector<void*> inputs_, outputs_;
};

class CudaDevice final : public NcclRanks {
 public:
  explicit CudaDevice(DeviceState state) : NcclRanks(state.ordinal), state_(std::move(state)) {}
  ~CudaDevice() override { drop_streams(); }

  std::string description() const override {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return format_text("{}, {} bytes, {} multiprocessors", state_.name, total,
                       state_.multiprocessors);
  }
  std::string missing() const override { return missing_libraries(); }
  uint64_t identity() const override { return state_.identity; }

  // --- Memory ---
  Result<void*> allocate(DevicePlace place, size_t bytes) override {
    void* data = nullptr;
    if (place == DevicePlace::kPinned) {
      OFSDP_RETURN_IF_ERROR(
          checked(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "cudaHostAlloc"));
      __builtin_memset(data, 0, bytes);
      return data;
    }
    const Nccl& n = nccl();
    if (place == DevicePlace::kShared && n.mem_alloc != nullptr && n.mem_free != nullptr) {
      if (n.mem_alloc(&data, bytes) != kNcclSuccess) return fault("ncclMemAlloc: no memory");
      nccl_allocations_.insert(data);
    } else {
      OFSDP_RETURN_IF_ERROR(checked(cudaMalloc(&data, bytes), "cudaMalloc"));
    }
    cudaError_t error = cudaMemset(data, 0, bytes);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    if (error == cudaSuccess) return data;
    Status status = checked(error, "cudaMemset");
    release(place, data);
    return status;
  }
  void release(DevicePlace place, void* data) override {
    if (place == DevicePlace::kPinned) {
      cudaFreeHost(data);
    } else if (nccl_allocations_.erase(data) > 0) {
      nccl().mem_free(data);
    } else {
      cudaFree(data);
    }
  }

  // --- Streams and order ---
  Result<ofsdp_stream*> make_stream(bool urgent) override {
    int lowest = 0, highest = 0;
    cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    cudaStream_t stream = nullptr;
    OFSDP_RETURN_IF_ERROR(checked(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? highest : lowest),
        "cudaStreamCreateWithPriority"));
    return reinterpret_cast<ofsdp_stream*>(stream);
  }
  void drop_stream(ofsdp_stream* stream) override { cudaStreamDestroy(raw(stream)); }
  void* native_stream(ofsdp_stream* stream) override { return raw(stream); }
  Result<ofsdp_event*> make_event(bool timed) override {
    cudaEvent_t event = nullptr;
    const unsigned flags = cudaEventBlockingSync | (timed ? 0u : cudaEventDisableTiming);
    OFSDP_RETURN_IF_ERROR(checked(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate"));
    return reinterpret_cast<ofsdp_event*>(event);
  }
  void drop_event(ofsdp_event* event) override { cudaEventDestroy(raw(event)); }
  Status record(ofsdp_event* event, ofsdp_stream* stream) override {
    return checked(cudaEventRecord(raw(event), raw(stream)), "cudaEventRecord");
  }
  // In a capture the event must be external to the graph; outside of a capture that flag is an
  // error.
  Status signal(ofsdp_event* event, ofsdp_stream* stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    OFSDP_RETURN_IF_ERROR(
        checked(cudaStreamIsCapturing(raw(stream), &status), "cudaStreamIsCapturing"));
    const unsigned flags =
        status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
    return checked(cudaEventRecordWithFlags(raw(event), raw(stream), flags),
                   "cudaEventRecordWithFlags");
  }
  Status wait(ofsdp_stream* stream, ofsdp_event* event) override {
    return checked(cudaStreamWaitEvent(raw(stream), raw(event), 0), "cudaStreamWaitEvent");
  }
  Status await(ofsdp_event* event) override {
    return checked(wait_for_event(raw(event)), "the GPU");
  }
  Result<bool> reached(ofsdp_event* event) override {
    const cudaError_t error = cudaEventQuery(raw(event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // clear it, or the next call returns it
      return false;
    }
    OFSDP_RETURN_IF_ERROR(checked(error, "the GPU"));
    return true;
  }
  Status synchronize() override { return checked(cudaDeviceSynchronize(), "the GPU"); }
  // A capture accepts no node of 0 bytes.
  Status copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes) override {
    if (bytes == 0) return {};
    return checked(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, raw(stream)),
                   "cudaMemcpyAsync");
  }
  Status clear(ofsdp_stream* stream, void* dst, size_t bytes) override {
    if (bytes == 0) return {};
    return checked(cudaMemsetAsync(dst, 0, bytes, raw(stream)), "cudaMemsetAsync");
  }
  Status mark(ofsdp_stream* stream, int64_t* pinned, int64_t value) override {
    return checked(cuda::mark(pinned, value, raw(stream)), "mark");
  }
  Status capture_begin(ofsdp_stream* stream) override {
    return checked(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture");
  }
  Result<ofsdp_device_graph*> capture_end(ofsdp_stream* stream) override {
    OFSDP_ASSIGN_OR_RETURN(cudaGraphExec_t executable, end_capture(raw(stream)));
    return reinterpret_cast<ofsdp_device_graph*>(executable);
  }
  Status launch(ofsdp_device_graph* graph, ofsdp_stream* stream) override {
    return checked(cudaGraphLaunch(raw(graph), raw(stream)), "cudaGraphLaunch");
  }
  void drop_graph(ofsdp_device_graph* graph) override { cudaGraphExecDestroy(raw(graph)); }

  // --- Kernels ---
  Status allow(uint32_t what) override {
    state_.tf32 = (what & OFSDP_MAY_ROUND_TO_TF32) != 0;
    state_.may_vary = (what & OFSDP_MAY_VARY) != 0;
    return {};
  }
  std::unique_ptr<Kernel> make_kernel(const std::string& op, const Problem& problem,
                                      KernelChoice* choice) override {
    auto kernel = make_operator(state_, op, problem, choice);
    if (kernel == nullptr) return nullptr;
    return std::make_unique<LaunchedKernel>(*this, std::move(kernel), problem);
  }

  // --- Arithmetic ---
  Status begin(ofsdp_stream* stream, ofsdp_run_state* state, ofsdp_step_numbers* numbers,
               bool update, bool scales) override {
    return checked(begin_update(state, numbers, update, scales, raw(stream)), "begin");
  }
  Status note_loss(ofsdp_stream* stream, ofsdp_run_state* state, int index, const float* loss,
                   bool stops) override {
    return checked(cuda::note_loss(state, index, loss, stops, raw(stream)), "note_loss");
  }
  Status convert(ofsdp_stream* stream, const void* src, int32_t from, void* dst, int32_t to,
                 int64_t count) override {
    return checked(cuda::convert(src, from, dst, to, count, raw(stream)), "convert");
  }
  Status add(ofsdp_stream* stream, const void* src, int32_t from, float* dst,
             int64_t count) override {
    return checked(add_onto(src, from, dst, count, raw(stream)), "add");
  }
  Status round(ofsdp_stream* stream, float* values, int32_t to, int64_t count) override {
    return checked(round_values(values, to, count, raw(stream)), "round");
  }
  Status reduce(ofsdp_stream* stream, const ofsdp_reduce* r) override {
    return checked(reduce_gradient(*r, raw(stream)), "reduce");
  }
  Status clip(ofsdp_stream* stream, ofsdp_run_state* state, double max_norm, bool scales) override {
    return checked(cuda::clip(state, max_norm, scales, raw(stream)), "clip");
  }
  Status add_exact_squares(ofsdp_stream* stream, const float* values, int64_t count,
                           ofsdp_exact_sum* sum) override {
    return checked(cuda::add_exact_squares(values, count, sum, raw(stream)), "exact squares");
  }
  Status take_exact_sum(ofsdp_stream* stream, ofsdp_exact_sum* sum, double* limbs) override {
    return checked(cuda::take_exact_sum(sum, limbs, raw(stream)), "exact squares");
  }
  Status exact_norm(ofsdp_stream* stream, const double* limbs, ofsdp_run_state* state) override {
    return checked(cuda::exact_norm(limbs, &state->squared_norm, raw(stream)), "exact squares");
  }

  // --- Trace ---
  Status elapsed(ofsdp_event* first, ofsdp_event* then, double* microseconds) override {
    float milliseconds = 0;
    const cudaError_t error = cudaEventElapsedTime(&milliseconds, raw(first), raw(then));
    *microseconds = static_cast<double>(milliseconds) * 1e3;
    return checked(error, "cudaEventElapsedTime");
  }

 private:
  DeviceState state_;
  std::set<void*> nccl_allocations_;  // from ncclMemAlloc
};

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// A driver runs no CUDA runtime of a newer major version.
Result<int> count() {
  int driver = 0, runtime = 0, devices = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return input_error("no NVIDIA driver");
  if (driver < kMinDriver || driver / 1000 < runtime / 1000) {
    return input_error("the NVIDIA driver supports CUDA {}, expected at least {}", version(driver),
                       version(std::max(kMinDriver, runtime / 1000 * 1000)));
  }
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return devices;
  return input_error("{}", error == cudaSuccess ? "no GPU" : cudaGetErrorString(error));
}

Result<std::unique_ptr<Device>> open(int ordinal) {
  cudaDeviceProp properties{};
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    return input_error("--device cuda: GPU {}: {}", ordinal, cudaGetErrorString(error));
  }
  if (properties.major < 8) {
    return input_error("--device cuda: {}: expected compute capability 8.0 or newer, found {}.{}",
                       properties.name, properties.major, properties.minor);
  }
  return std::unique_ptr<Device>(new CudaDevice(
      {.ordinal = ordinal,
       .multiprocessors = properties.multiProcessorCount,
       .capability = 10 * properties.major + properties.minor,
       .bytes = properties.totalGlobalMem,
       .identity = Fnv1a()
                       .add(std::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)))
                       .value(),
       .name = properties.name}));
}

}  // namespace

void use_device(int ordinal) { cudaSetDevice(ordinal); }

}  // namespace ofsdp::kernels::cuda

extern "C" {
__attribute__((
    visibility("default"))) extern const ofsdp::kernels::DeviceLibrary ofsdp_device_library;
const ofsdp::kernels::DeviceLibrary ofsdp_device_library{
    ofsdp::kernels::kDeviceBuild, ofsdp::kernels::cuda::count, ofsdp::kernels::cuda::open};
}
