// Defines the cuDNN and NVRTC functions that cudnn-frontend calls, and forwards them to the
// libraries opened by device/libraries.cpp; nothing is linked. If the function is missing, returns
// "not supported".
#include <cudnn.h>
#include <nvrtc.h>

#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/libraries.h"

using ofsdp::kernels::cuda::function_of;
using ofsdp::kernels::cuda::Nvidia;

// Looks up the function once.
#define OFSDP_PASS_ON(library, otherwise, name, ...)                               \
  [&] {                                                                            \
    static auto* const real = function_of<decltype(name)>(Nvidia::library, #name); \
    return real == nullptr ? otherwise : real(__VA_ARGS__);                        \
  }()
#define OFSDP_CUDNN(...) OFSDP_PASS_ON(kCudnn, CUDNN_STATUS_NOT_SUPPORTED, __VA_ARGS__)
#define OFSDP_NVRTC(...) OFSDP_PASS_ON(kNvrtc, NVRTC_ERROR_INTERNAL_ERROR, __VA_ARGS__)

extern "C" {

size_t cudnnGetVersion() { return OFSDP_PASS_ON(kCudnn, size_t{0}, cudnnGetVersion); }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return OFSDP_PASS_ON(kCudnn, "cuDNN is absent", cudnnGetErrorString, status);
}
void cudnnGetLastErrorString(char* message, size_t size) {
  OFSDP_PASS_ON(kCudnn, void(), cudnnGetLastErrorString, message, size);
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

namespace ofsdp::kernels::cuda {
namespace {

constexpr size_t kWorkspaceShare = 32;  // a call may use 1/32 of device memory

std::shared_ptr<void> make_handle() {
  cudnnHandle_t handle = nullptr;
  if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return nullptr;
  return {handle, [](void* one) { cudnnDestroy(static_cast<cudnnHandle_t>(one)); }};
}

}  // namespace

CudnnTarget cudnn_target(DeviceState& device) {
  if (device.cudnn == nullptr) device.cudnn = make_handle();
  return {device.cudnn.get(), "",
          device.capability,  device.tf32,
          device.may_vary,    static_cast<int64_t>(device.bytes / kWorkspaceShare)};
}

}  // namespace ofsdp::kernels::cuda
