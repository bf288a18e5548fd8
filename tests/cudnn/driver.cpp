// A driver without a GPU, which takes any code and runs none: cuDNN compiles attention kernels
// while planning and loads them at once. All other functions that it looks for exist and fail.
//
// Ownership: none. Threads: any. Errors: CUDA_ERROR_NO_DEVICE.
namespace {
constexpr int kNoDevice = 100;
constexpr int kVersion = 13000;
int loaded = 0;  // the handle of each library is this address
}  // namespace

extern "C" {

int cuInit(unsigned) { return kNoDevice; }
int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return 0;
}
int cuLibraryLoadData(void** library, const void*, ...) {
  *library = &loaded;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &loaded;
  return 0;
}
int cuKernelGetFunction(void** function, void*) {
  *function = &loaded;
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuLibraryUnload(void*) { return 0; }

// clang-format off
#define FOR_EACH_OTHER(X) \
  X(cuCtxGetCurrent) X(cuCtxGetLimit) X(cuCtxPopCurrent) X(cuCtxPushCurrent) X(cuDeviceGet) \
  X(cuDeviceGetCount) X(cuGetErrorName) X(cuGetErrorString) X(cuKernelGetAttribute) \
  X(cuLaunchCooperativeKernel) X(cuLaunchKernel) X(cuLaunchKernelEx) \
  X(cuLibraryLoadFromFile) X(cuLinkAddData) X(cuLinkComplete) \
  X(cuLinkCreate) X(cuLinkDestroy) X(cuOccupancyMaxPotentialClusterSize) X(cuStreamGetCtx)
// clang-format on
#define OTHER(name) \
  int name() { return kNoDevice; }
FOR_EACH_OTHER(OTHER)

}  // extern "C"
