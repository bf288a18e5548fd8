// What cudnn-frontend calls of cuDNN and NVRTC, passed on to the libraries that libraries.cpp opened:
// nothing here is linked to either. A function that the library lacks says that it is not supported.
#include <cudnn.h>
#include <nvrtc.h>

#include "kernels/cuda/library/cudnn/plan.h"
#include "kernels/cuda/library/device_state.h"
#include "kernels/cuda/library/libraries.h"

namespace {

using ofsdp::cuda::Nvidia;

template <typename Result, typename... Parameters, typename... Arguments>
Result pass_on(Nvidia library, const char* name, Result otherwise, Result (*)(Parameters...),
               Arguments... arguments) {
  auto* function = ofsdp::cuda::function_of<Result(Parameters...)>(library, name);
  return function == nullptr ? otherwise : function(arguments...);
}

}  // namespace

// The function's own declaration says the types; its name, what to look for.
#define OFSDP_CUDNN(name, ...) \
  pass_on(Nvidia::kCudnn, #name, CUDNN_STATUS_NOT_SUPPORTED, &name, __VA_ARGS__)
#define OFSDP_NVRTC(name, ...) \
  pass_on(Nvidia::kNvrtc, #name, NVRTC_ERROR_INTERNAL_ERROR, &name, __VA_ARGS__)

extern "C" {

size_t cudnnGetVersion() {
  auto* function = ofsdp::cuda::function_of<size_t()>(Nvidia::kCudnn, "cudnnGetVersion");
  return function == nullptr ? 0 : function();
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  const char* otherwise = "cuDNN is absent";
  return pass_on(Nvidia::kCudnn, "cudnnGetErrorString", otherwise, &cudnnGetErrorString, status);
}
void cudnnGetLastErrorString(char* message, size_t size) {
  using Function = void(char*, size_t);
  auto* function = ofsdp::cuda::function_of<Function>(Nvidia::kCudnn, "cudnnGetLastErrorString");
  if (function != nullptr) function(message, size);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return OFSDP_CUDNN(cudnnCreate, handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return OFSDP_CUDNN(cudnnDestroy, handle); }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return OFSDP_CUDNN(cudnnGetStream, handle, stream);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return OFSDP_CUDNN(cudnnSetStream, handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  return OFSDP_CUDNN(cudnnBackendCreateDescriptor, type, made);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t one) {
  return OFSDP_CUDNN(cudnnBackendDestroyDescriptor, one);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t one) {
  return OFSDP_CUDNN(cudnnBackendFinalize, one);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t one,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return OFSDP_CUDNN(cudnnBackendSetAttribute, one, name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t one,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t* count, void* elements) {
  return OFSDP_CUDNN(cudnnBackendGetAttribute, one, name, type, wanted, count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t operands) {
  return OFSDP_CUDNN(cudnnBackendExecute, handle, plan, operands);
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char* name, int count,
                               const char* const* headers, const char* const* names) {
  return OFSDP_NVRTC(nvrtcCreateProgram, program, text, name, count, headers, names);
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  return OFSDP_NVRTC(nvrtcDestroyProgram, program);
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  return OFSDP_NVRTC(nvrtcCompileProgram, program, count, options);
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  return OFSDP_NVRTC(nvrtcGetCUBINSize, program, size);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code) {
  return OFSDP_NVRTC(nvrtcGetCUBIN, program, code);
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  return OFSDP_NVRTC(nvrtcGetProgramLogSize, program, size);
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* text) {
  return OFSDP_NVRTC(nvrtcGetProgramLog, program, text);
}

}  // extern "C"

namespace ofsdp::cuda {
namespace {

constexpr size_t kShareOfWorkspace = 32;  // of the card's memory, for one call

int capability_of(int ordinal) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
  return 10 * major + minor;
}

std::shared_ptr<void> make_handle() {
  cudnnHandle_t handle = nullptr;
  if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return nullptr;
  return {handle, [](void* one) { cudnnDestroy(static_cast<cudnnHandle_t>(one)); }};
}

}  // namespace

CudnnTarget cudnn_target(ofsdp_device& device) {
  if (device.cudnn == nullptr) device.cudnn = make_handle();
  CudnnTarget target{device.cudnn.get(), "", capability_of(device.ordinal), device.tf32,
                     device.may_vary};
  size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) == cudaSuccess) {
    target.most_workspace = static_cast<int64_t>(total / kShareOfWorkspace);
  }
  return target;
}

}  // namespace ofsdp::cuda
