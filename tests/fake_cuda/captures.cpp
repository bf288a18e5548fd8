// Captures, their graphs, and launches of graphs.
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

// cudaThreadExchangeStreamCaptureMode's documentation.
bool concerns(const Capture& capture) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) {
    return capture.mode != cudaStreamCaptureModeRelaxed;
  }
  return mode_of_thread == cudaStreamCaptureModeGlobal &&
         capture.mode == cudaStreamCaptureModeGlobal;
}

std::set<size_t> with_all_before(const Body& body, const std::set<size_t>& some) {
  std::set<size_t> all = some;
  std::vector<size_t> open(some.begin(), some.end());
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    for (const size_t before : body.nodes[node].after) {
      if (all.insert(before).second) open.push_back(before);
    }
  }
  return all;
}

// Whether the origin finally waits for every node and every stream; reports each exception.
bool joined(const Call& call, const CUstream_st& origin, const Body& body) {
  const std::set<size_t> before = with_all_before(body, origin.after);
  bool all = true;
  for (const auto& stream : runtime().streams) {
    if (stream.get() == &origin || stream->capture != origin.capture) continue;
    for (const size_t node : stream->after) {
      if (before.contains(node)) continue;
      all = false;
      say_broken("each stream of a capture is joined to its origin", call.name(),
                 text("stream ", stream->id, " after ", body.nodes[node].call));
    }
  }
  return all;
}

void leave(const Capture& capture) {
  Runtime& r = runtime();
  for (const auto& stream : r.streams) {
    if (stream->capture.get() != &capture) continue;
    stream->capture = nullptr;
    stream->after.clear();
  }
  std::erase_if(r.captures, [&](const auto& one) { return one.get() == &capture; });
}

CUgraphExec_st* executable(const Call& call, cudaGraphExec_t handle) {
  Runtime& r = runtime();
  if (r.known.contains(handle) && handle->lives) return handle;
  say_broken("an executable graph lives", call.name(),
             r.known.contains(handle) ? text("graph ", handle->id) : "no graph");
  return nullptr;
}

CUgraph_st* graph_of(const Call& call, cudaGraph_t handle) {
  Runtime& r = runtime();
  if (r.known.contains(handle) && handle->lives) return handle;
  say_broken("a graph lives", call.name(),
             r.known.contains(handle) ? text("graph ", handle->id) : "no graph");
  return nullptr;
}

bool events_live(const Call& call, const Body& body) {
  bool all = true;
  for (const Node& node : body.nodes) {
    if (node.event == nullptr || node.event->lives) continue;
    all = false;
    say_broken("an event that a graph records lives", call.name(), text("event ", node.event->id));
  }
  return all;
}

void check_priorities(const Call& call, const Body& body, unsigned long long flags) {
  std::set<int> priorities;
  for (const Node& node : body.nodes) priorities.insert(node.priority);
  if (priorities.size() < 2 || (flags & cudaGraphInstantiateFlagUseNodePriority) != 0) return;
  say_broken("a graph of streams of several priorities is instantiated with UseNodePriority",
             call.name(), text("flags ", flags));
}

}  // namespace

bool unsafe(const Call& call, const std::string& operand) {
  bool any = false;
  for (const auto& capture : runtime().captures) {
    if (!concerns(*capture)) continue;
    any = true;
    invalidate(*capture);
  }
  if (any) say_broken("a capture sees every call meanwhile", call.name(), operand);
  return any;
}

// Work on the legacy stream waits for all blocking streams.
bool captures(const Call& call, CUstream_st& stream, cudaError_t& error) {
  Runtime& r = runtime();
  error = cudaSuccess;
  if (stream.capture != nullptr) {
    if (stream.capture->valid) return true;
    error = call.gives(cudaErrorStreamCaptureInvalidated);
    return false;
  }
  if (&stream != r.legacy) return false;
  for (const auto& other : r.streams) {
    const bool blocking = (other->flags & cudaStreamNonBlocking) == 0;
    if (other->capture == nullptr || !blocking) continue;
    invalidate(*other->capture);
    error = call.breaks("the legacy stream rests while a stream captures that waits for it",
                        text("stream ", other->id), cudaErrorStreamCaptureImplicit);
  }
  return false;
}

size_t add_node(CUstream_st& stream, Node node) {
  std::vector<Node>& nodes = stream.capture->graph->body->nodes;
  node.after = stream.after;
  node.priority = stream.priority;
  nodes.push_back(std::move(node));
  stream.after = {nodes.size() - 1};
  return nodes.size() - 1;
}

void invalidate(Capture& capture) { capture.valid = false; }

// [Note: events of graphs]
void start(const Call& call, Queued& queued, CUgraphExec_st& graph) {
  auto launched = std::make_shared<Launched>();
  launched->graph = &graph;
  launched->turn = graph.launched++;
  launched->body = graph.body;
  const std::vector<Node>& nodes = graph.body->nodes;
  launched->left = nodes.size();
  launched->missing.resize(nodes.size());
  const bool at_once = runtime().draw(2) == 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    launched->missing[i] = nodes[i].after.size();
    if (nodes[i].after.empty()) launched->ready.push_back(i);
    if (nodes[i].event != nullptr && at_once) {
      launched->generations[i] = ++nodes[i].event->recorded;
    }
  }
  queued.call = call.name();
  queued.launched = std::move(launched);
}

Body::~Body() {
  for (CUuserObject_st* object : objects) {
    if (--object->references == 0) object->destroy(object->data);
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const Call call("cudaThreadExchangeStreamCaptureMode");
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const Call call("cudaStreamBeginCapture");
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  Runtime& r = runtime();
  if (stream == r.legacy || stream->capture != nullptr) {
    return call.breaks(
        stream == r.legacy ? "the legacy stream does not capture"
                           : "a stream is in one capture at a time",
        text("stream ", stream->id),
        stream == r.legacy ? cudaErrorStreamCaptureUnsupported : cudaErrorIllegalState);
  }
  auto capture = std::make_shared<Capture>();
  capture->id = ++r.next_id;
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->graph = added(r.graphs);
  r.captures.push_back(capture);
  stream->capture = std::move(capture);
  stream->after.clear();
  return cudaSuccess;
}

// A failed capture gives no graph to anybody.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const Call call("cudaStreamEndCapture");
  *graph = nullptr;
  CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = stream->capture;
  const std::string operand = text("stream ", stream->id);
  if (capture == nullptr) {
    return call.breaks("a capture begins before it ends", operand, cudaErrorIllegalState);
  }
  if (capture->origin != stream) {
    return call.breaks("a capture ends on the stream that began it", operand,
                       cudaErrorStreamCaptureUnmatched);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return call.breaks("a capture ends on the thread that began it", operand,
                       cudaErrorStreamCaptureWrongThread);
  }
  const bool all = !capture->valid || joined(call, *stream, *capture->graph->body);
  capture->open = false;
  leave(*capture);
  if (capture->valid && all) {
    *graph = capture->graph;
    return cudaSuccess;
  }
  capture->graph->lives = false;
  capture->graph->body = nullptr;
  return call.gives(all ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo_v2(stream, status, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t**, size_t*) {
  const Call call("cudaStreamGetCaptureInfo");
  const CUstream_st* const stream = stream_of(call, handle);
  if (stream == nullptr) return call.gives(cudaErrorInvalidResourceHandle);
  *status = cudaStreamCaptureStatusNone;
  if (stream->capture == nullptr) return cudaSuccess;
  *status =
      stream->capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = stream->capture->graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t handle,
                                 unsigned long long flags) {
  const Call call("cudaGraphInstantiate");
  if (call.refused()) return call.gives(*call.refused());
  const CUgraph_st* const graph = graph_of(call, handle);
  if (graph == nullptr) return call.gives(cudaErrorInvalidValue);
  check_priorities(call, *graph->body, flags);
  *made = added(runtime().executables);
  (*made)->body = graph->body;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t on) {
  const Call call("cudaGraphUpload");
  const CUstream_st* const stream = stream_of(call, on);
  if (stream == nullptr || executable(call, handle) == nullptr) {
    return call.gives(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture == nullptr) return cudaSuccess;
  return call.breaks("a graph is not uploaded in a capture", text("graph ", handle->id),
                     cudaErrorStreamCaptureUnsupported);
}
// CUDA could make the graph a node in a capture; nothing here needs that.
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  const Call call("cudaGraphLaunch");
  CUstream_st* const stream = stream_of(call, on);
  CUgraphExec_st* const graph = executable(call, handle);
  if (stream == nullptr || graph == nullptr || !events_live(call, *graph->body)) {
    return call.gives(cudaErrorInvalidResourceHandle);
  }
  cudaError_t error = cudaSuccess;
  if (captures(call, *stream, error)) {
    invalidate(*stream->capture);
    return call.breaks("a graph is not launched in a capture", text("graph ", graph->id),
                       cudaErrorStreamCaptureUnsupported);
  }
  if (error != cudaSuccess) return error;
  Queued queued;
  start(call, queued, *graph);
  put(*stream, std::move(queued));
  return cudaSuccess;
}
// A running launch keeps the graph's body.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  const Call call("cudaGraphExecDestroy");
  CUgraphExec_st* const graph = executable(call, handle);
  if (graph == nullptr) return call.gives(cudaErrorInvalidValue);
  graph->lives = false;
  graph->body = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  const Call call("cudaGraphDestroy");
  CUgraph_st* const graph = graph_of(call, handle);
  if (graph == nullptr) return call.gives(cudaErrorInvalidValue);
  graph->lives = false;
  graph->body = nullptr;
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy,
                                 unsigned references, unsigned) {
  const Call call("cudaUserObjectCreate");
  Runtime& r = runtime();
  r.objects.push_back(std::make_unique<CUuserObject_st>());
  *object = r.objects.back().get();
  **object = {data, destroy, references};
  return cudaSuccess;
}
// With Move the caller's reference becomes the graph's.
cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned count,
                                      unsigned flags) {
  const Call call("cudaGraphRetainUserObject");
  CUgraph_st* const graph = graph_of(call, handle);
  if (graph == nullptr) return call.gives(cudaErrorInvalidValue);
  if ((flags & cudaGraphUserObjectMove) == 0) object->references += count;
  graph->body->objects.insert(graph->body->objects.end(), count, object);
  return cudaSuccess;
}

}  // extern "C"
