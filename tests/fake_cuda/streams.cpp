// Streams and events, in captures and outside.
#include <algorithm>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr int kMin = 0, kGreatest = -5;  // priorities

std::string named(const CUstream_st& stream) { return text("stream ", stream.id); }
std::string named(const CUevent_st& event) { return text("event ", event.id); }

cudaError_t make_stream(const Call& call, cudaStream_t* stream, unsigned flags, int priority) {
  if (call.refused()) return call.gives(*call.refused());
  CUstream_st* const one = added(runtime().streams);
  one->flags = flags;
  one->priority = std::clamp(priority, kGreatest, kMin);
  *stream = one;
  if (one->priority == priority) return cudaSuccess;
  return call.breaks("a stream's priority is in the device's range", text("priority ", priority),
                     cudaSuccess);
}

cudaError_t make_event(const Call& call, cudaEvent_t* event, unsigned flags) {
  if (call.refused()) return call.gives(*call.refused());
  *event = added(runtime().events);
  (*event)->flags = flags;
  return cudaSuccess;
}

// In a capture: the next node that waits for the event depends on the stream's dependencies.
cudaError_t record_in_capture(const Call& call, CUevent_st& event, CUstream_st& stream,
                              bool external) {
  if (external) {
    event.of_graph = true;
    add_node(stream, {call.name(), nullptr, {}, &event, 0});
    return cudaSuccess;
  }
  event.capture = stream.capture;
  event.after = stream.after;
  return cudaSuccess;
}

cudaError_t record(const Call& call, cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  CUstream_st* const stream = stream_of(call, on);
  CUevent_st* const event = event_of(call, handle);
  if (stream == nullptr || event == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  const bool external = flags == cudaEventRecordExternal;
  cudaError_t error = cudaSuccess;
  if (captures(call, *stream, error)) return record_in_capture(call, *event, *stream, external);
  if (error != cudaSuccess) return error;
  if (external) {
    return call.breaks("an external record is in a capture", named(*event), cudaErrorIllegalState);
  }
  event->capture = nullptr;
  event->of_graph = false;
  Queued queued;
  queued.call = call.name();
  queued.records = event;
  queued.generation = ++event->recorded;
  put(*stream, std::move(queued));
  return cudaSuccess;
}

// Takes the stream into the capture, or makes it depend on the work before the event.
cudaError_t wait_in_capture(const Call& call, CUstream_st& stream, CUevent_st& event) {
  if (!event.capture->open) {
    return call.breaks("an event of an ended capture is recorded anew before it is waited for",
                       named(event), cudaErrorCapturedEvent);
  }
  if (&stream == runtime().legacy) {
    invalidate(*event.capture);
    return call.breaks("the legacy stream joins no capture", named(event),
                       cudaErrorStreamCaptureImplicit);
  }
  if (stream.capture != nullptr && stream.capture != event.capture) {
    invalidate(*stream.capture);
    invalidate(*event.capture);
    return call.breaks("an event is waited for in its own capture", named(event),
                       cudaErrorStreamCaptureMerge);
  }
  stream.capture = event.capture;
  stream.after.insert(event.after.begin(), event.after.end());
  return event.capture->valid ? cudaSuccess : call.gives(cudaErrorStreamCaptureInvalidated);
}

bool was_recorded(const Call& call, const CUevent_st& event) {
  if (event.recorded > 0 || event.of_graph || event.capture != nullptr) return true;
  say_broken("an event is recorded before it is waited for", call.name(), named(event));
  return false;
}

// Whether the host may ask for the event's state.
bool may_ask(const Call& call, const CUevent_st& event, cudaError_t& error) {
  error = cudaErrorStreamCaptureUnsupported;
  if (unsafe(call, named(event))) return false;
  if (event.capture == nullptr) return true;
  if (event.capture->open) invalidate(*event.capture);
  say_broken("the host asks for no event that a capture recorded", call.name(), named(event));
  error = cudaErrorCapturedEvent;
  return false;
}

bool has_time(const Call& call, const CUevent_st& event) {
  const char* rule = nullptr;
  if ((event.flags & cudaEventDisableTiming) != 0) rule = "times are of events that keep them";
  if (event.capture != nullptr || event.of_graph) rule = "times are of events outside of graphs";
  if (event.recorded == 0) rule = "times are of events that were recorded";
  if (rule != nullptr) say_broken(rule, call.name(), named(event));
  return rule == nullptr;
}

}  // namespace

CUstream_st* stream_of(const Call& call, cudaStream_t handle) {
  Runtime& r = runtime();
  constexpr uintptr_t kLegacy = 1;
  if (handle == nullptr || reinterpret_cast<uintptr_t>(handle) == kLegacy) return r.legacy;
  if (r.known.contains(handle) && handle->lives) return handle;
  say_broken("a stream lives", call.name(),
             r.known.contains(handle) ? named(*handle) : "no stream");
  return nullptr;
}

CUevent_st* event_of(const Call& call, cudaEvent_t handle) {
  Runtime& r = runtime();
  if (r.known.contains(handle) && handle->lives) return handle;
  say_broken("an event lives", call.name(), r.known.contains(handle) ? named(*handle) : "no event");
  return nullptr;
}

// The legacy stream and the streams without cudaStreamNonBlocking wait for each other.
void put(CUstream_st& stream, Queued queued) {
  Runtime& r = runtime();
  const bool legacy = &stream == r.legacy;
  for (const auto& other : r.streams) {
    const bool blocking = (other->flags & cudaStreamNonBlocking) == 0;
    const bool ordered = legacy ? blocking : other.get() == r.legacy;
    if (other.get() == &stream || !ordered || (stream.flags & cudaStreamNonBlocking) != 0) continue;
    if (other->done < other->put) queued.behind.emplace_back(other.get(), other->put);
  }
  ++stream.put;
  stream.queue.push_back(std::move(queued));
}

cudaError_t put(const Call& call, cudaStream_t handle, const std::string& name,
                std::function<void()> work) {
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  cudaError_t error = cudaSuccess;
  if (captures(call, *stream, error)) {
    add_node(*stream, {name, std::move(work), {}, nullptr, 0});
    return cudaSuccess;
  }
  if (error != cudaSuccess) return error;
  Queued queued;
  queued.call = name;
  queued.work = std::move(work);
  put(*stream, std::move(queued));
  return cudaSuccess;
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  const Call call("cudaDeviceGetStreamPriorityRange");
  *least = kMin;
  *greatest = kGreatest;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(Call("cudaStreamCreate"), stream, cudaStreamDefault, kMin);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return make_stream(Call("cudaStreamCreateWithFlags"), stream, flags, kMin);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return make_stream(Call("cudaStreamCreateWithPriority"), stream, flags, priority);
}
// Queued work still runs.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const Call call("cudaStreamDestroy");
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  stream->lives = false;
  if (stream->capture == nullptr) return cudaSuccess;
  invalidate(*stream->capture);
  return call.breaks("a stream is not destroyed while it captures", named(*stream), cudaSuccess);
}
cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  const Call call("cudaStreamGetId");
  const CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  *id = stream->id;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Call call("cudaStreamGetPriority");
  const CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Call call("cudaStreamSynchronize");
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  if (unsafe(call, named(*stream))) return call.gives(cudaErrorStreamCaptureUnsupported);
  if (stream->capture != nullptr) {
    invalidate(*stream->capture);
    return call.breaks("the host waits for no stream that captures", named(*stream),
                       cudaErrorStreamCaptureUnsupported);
  }
  return run_until(call, [&, all = stream->put] { return stream->done >= all; })
             ? cudaSuccess
             : call.gives(cudaErrorLaunchFailure);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle, unsigned) {
  const Call call("cudaStreamWaitEvent");
  CUstream_st* const stream = stream_of(call, on);
  CUevent_st* const event = event_of(call, handle);
  if (stream == nullptr || event == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) return wait_in_capture(call, *stream, *event);
  if (!was_recorded(call, *event)) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (captures(call, *stream, error)) {
    invalidate(*stream->capture);
    return call.breaks("a capture waits for no work outside of it", named(*event),
                       cudaErrorStreamCaptureIsolation);
  }
  if (error != cudaSuccess) return error;
  Queued queued;
  queued.call = call.name();
  queued.waits_for = event;
  queued.generation = event->recorded;
  put(*stream, std::move(queued));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event(Call("cudaEventCreate"), event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return make_event(Call("cudaEventCreateWithFlags"), event, flags);
}
// Queued records and waits stay valid.
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const Call call("cudaEventDestroy");
  CUevent_st* const event = event_of(call, handle);
  if (event == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  event->lives = false;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record(Call("cudaEventRecord"), event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return record(Call("cudaEventRecordWithFlags"), event, stream, flags);
}
// [Note: events of graphs] CUDA does not say whether an event that a graph records belongs to a
// launch before the launch reaches it: a draw decides.
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const Call call("cudaEventSynchronize");
  const CUevent_st* const event = event_of(call, handle);
  if (event == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  cudaError_t error = cudaSuccess;
  if (!may_ask(call, *event, error)) return call.gives(error);
  if (!was_recorded(call, *event)) return cudaSuccess;
  run_some();
  return run_until(call, [&, it = event->recorded] { return event->reached >= it; })
             ? cudaSuccess
             : call.gives(cudaErrorLaunchFailure);
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const Call call("cudaEventQuery");
  if (call.refused()) return call.gives(*call.refused());
  const CUevent_st* const event = event_of(call, handle);
  if (event == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  cudaError_t error = cudaSuccess;
  if (!may_ask(call, *event, error)) return call.gives(error);
  if (!was_recorded(call, *event)) return cudaSuccess;
  run_some();
  return event->reached >= event->recorded ? cudaSuccess : call.gives(cudaErrorNotReady);
}
// A clock that ticks with each operation: an operation that runs later has a later time.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t began, cudaEvent_t ended) {
  const Call call("cudaEventElapsedTime");
  const CUevent_st *const first = event_of(call, began), *const then = event_of(call, ended);
  if (first == nullptr || then == nullptr || !has_time(call, *first) || !has_time(call, *then)) {
    return call.gives(cudaErrorInvalidResourceHandle);
  }
  if (first->reached < first->recorded || then->reached < then->recorded) {
    return call.gives(cudaErrorNotReady);
  }
  *milliseconds = (static_cast<float>(then->at) - static_cast<float>(first->at)) * 1e-3f;
  return cudaSuccess;
}

}  // extern "C"
