// Streams, events, copies and graphs of the table. Streams do not synchronize with the legacy one.
#include "kernels/cuda/device/handles.h"

namespace ofsdp::kernels::cuda {
namespace {

cudaEvent_t raw(ofsdp_event* event) { return reinterpret_cast<cudaEvent_t>(event); }
using cuda::raw;

ofsdp_stream* make_stream(ofsdp_device* device, int32_t urgent) {
  int least = 0, most = 0;
  cudaDeviceGetStreamPriorityRange(&least, &most);
  cudaStream_t stream = nullptr;
  const cudaError_t error =
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent != 0 ? most : least);
  if (failed(device, error, "cudaStreamCreateWithPriority") != 0) return nullptr;
  return reinterpret_cast<ofsdp_stream*>(stream);
}

void drop_stream(ofsdp_device*, ofsdp_stream* stream) { cudaStreamDestroy(raw(stream)); }

void* native_stream(ofsdp_device*, ofsdp_stream* stream) { return raw(stream); }

ofsdp_event* make_event(ofsdp_device* device) {
  cudaEvent_t event = nullptr;
  const cudaError_t error =
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
  if (failed(device, error, "cudaEventCreate") != 0) return nullptr;
  return reinterpret_cast<ofsdp_event*>(event);
}

ofsdp_event* make_timed_event(ofsdp_device* device) {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventBlockingSync);
  if (failed(device, error, "cudaEventCreate") != 0) return nullptr;
  return reinterpret_cast<ofsdp_event*>(event);
}

int32_t elapsed(ofsdp_device* device, ofsdp_event* first, ofsdp_event* then, double* microseconds) {
  float milliseconds = 0;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, raw(first), raw(then));
  *microseconds = static_cast<double>(milliseconds) * 1e3;
  return failed(device, error, "cudaEventElapsedTime");
}

void drop_event(ofsdp_device*, ofsdp_event* event) { cudaEventDestroy(raw(event)); }

int32_t record(ofsdp_device* device, ofsdp_event* event, ofsdp_stream* stream) {
  return failed(device, cudaEventRecord(raw(event), raw(stream)), "cudaEventRecord");
}

// An event that is external to a graph; to ask for one outside of a capture is an error.
int32_t signal(ofsdp_device* device, ofsdp_event* event, ofsdp_stream* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (failed(device, cudaStreamIsCapturing(raw(stream), &status), "cudaStreamIsCapturing") != 0) {
    return 1;
  }
  const unsigned flags =
      status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
  return failed(device, cudaEventRecordWithFlags(raw(event), raw(stream), flags),
                "cudaEventRecordWithFlags");
}

int32_t wait(ofsdp_device* device, ofsdp_stream* stream, ofsdp_event* event) {
  return failed(device, cudaStreamWaitEvent(raw(stream), raw(event), 0), "cudaStreamWaitEvent");
}

int32_t await(ofsdp_device* device, ofsdp_event* event) {
  return failed(device, cudaEventSynchronize(raw(event)), "the GPU");
}

int32_t reached(ofsdp_device* device, ofsdp_event* event) {
  const cudaError_t error = cudaEventQuery(raw(event));
  if (error == cudaSuccess) return 1;
  if (error != cudaErrorNotReady) return failed(device, error, "the GPU") != 0 ? -1 : 1;
  cudaGetLastError();  // not to be found by the next call
  return 0;
}

int32_t synchronize(ofsdp_device* device) {
  return failed(device, cudaDeviceSynchronize(), "the GPU");
}

// A capture has no node of 0 bytes.
int32_t copy(ofsdp_device* device, ofsdp_stream* stream, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return 0;
  return failed(device, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, raw(stream)),
                "cudaMemcpyAsync");
}

int32_t clear(ofsdp_device* device, ofsdp_stream* stream, void* dst, size_t bytes) {
  if (bytes == 0) return 0;
  return failed(device, cudaMemsetAsync(dst, 0, bytes, raw(stream)), "cudaMemsetAsync");
}

int32_t capture_begin(ofsdp_device* device, ofsdp_stream* stream) {
  return failed(device, cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture");
}

ofsdp_device_graph* capture_end(ofsdp_device* device, ofsdp_stream* stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaError_t error = cudaStreamEndCapture(raw(stream), &graph);
  if (failed(device, error, "cudaStreamEndCapture") != 0) return nullptr;
  error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (error == cudaSuccess) error = cudaGraphUpload(executable, raw(stream));
  if (failed(device, error, "cudaGraphInstantiate") != 0) return nullptr;
  return reinterpret_cast<ofsdp_device_graph*>(executable);
}

int32_t launch(ofsdp_device* device, ofsdp_device_graph* graph, ofsdp_stream* stream) {
  return failed(device, cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), raw(stream)),
                "cudaGraphLaunch");
}

void drop_graph(ofsdp_device*, ofsdp_device_graph* graph) {
  cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph));
}

}  // namespace

void add_order(ofsdp_device_table& table) {
  table.make_stream = make_stream;
  table.drop_stream = drop_stream;
  table.native_stream = native_stream;
  table.make_event = make_event;
  table.drop_event = drop_event;
  table.make_timed_event = make_timed_event;
  table.elapsed = elapsed;
  table.record = record;
  table.signal = signal;
  table.wait = wait;
  table.await = await;
  table.reached = reached;
  table.synchronize = synchronize;
  table.copy = copy;
  table.clear = clear;
  table.capture_begin = capture_begin;
  table.capture_end = capture_end;
  table.launch = launch;
  table.drop_graph = drop_graph;
}

}  // namespace ofsdp::kernels::cuda
