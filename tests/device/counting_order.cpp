// Streams, events, captures: what waits for what, and in which order it runs.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

using ofsdp::Status;
using ofsdp::counting::Operation;
using Kind = Operation::Kind;

size_t ofsdp_device::draw(size_t below) {
  random = random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<size_t>(random >> 33) % below;
}

int32_t ofsdp_device::push(ofsdp_stream* stream, Operation operation) {
  if (stream->capture == nullptr) {
    stream->queue.push_back(std::move(operation));
  } else {
    stream->capture->streams[stream].push_back(std::move(operation));
  }
  return 0;
}

int32_t ofsdp_device::put(ofsdp_stream* stream, std::function<Status()> work) {
  ++counts[stream->capture == nullptr ? "operations" : "captured_operations"];
  return push(stream, {Kind::kWork, std::move(work), nullptr, 0, nullptr, nullptr});
}

Status ofsdp_device::run_one(Operation& operation) {
  ++clock;
  if (operation.kind == Kind::kRecord) {
    operation.event->reached = std::max(operation.event->reached, operation.generation);
    operation.event->at = clock;
  }
  if (operation.kind == Kind::kGraph) return operation.graph->run_one(*this);
  return operation.kind == Kind::kWork ? operation.work() : Status{};
}

namespace {

bool may_run(const Operation& o) {
  if (o.kind == Kind::kWait) return o.event->reached >= o.generation;
  if (o.kind == Kind::kGraph) return o.graph->able();
  return !o.ready || o.ready();
}

}  // namespace

// Some of the heads of one queue.
Status ofsdp_device::run_some(ofsdp_stream& stream) {
  for (size_t n = 1 + draw(8); n > 0 && !stream.queue.empty(); --n) {
    Operation& head = stream.queue.front();
    if (!may_run(head)) break;
    OFSDP_RETURN_IF_ERROR(run_one(head));
    if (head.kind != Kind::kGraph || head.graph->over()) stream.queue.pop_front();
  }
  return {};
}

// Runs heads of queues that may run, in a drawn order, until `reached`.
Status ofsdp_device::run_until(const std::function<bool()>& reached, bool waits) {
  constexpr std::chrono::microseconds kPause{50};
  protect(true);
  while (!reached() && fault.ok()) {
    std::vector<ofsdp_stream*> able;
    for (ofsdp_stream* stream : streams) {
      if (!stream->queue.empty() && may_run(stream->queue.front())) able.push_back(stream);
    }
    if (!able.empty()) {
      fault = run_some(*able[draw(able.size())]);
    } else if (groups.empty()) {
      violation("streams wait for each other for ever");
      fault = ofsdp::fault("streams wait for each other for ever");
    } else if (waits) {
      protect(false);
      mutex.unlock();
      std::this_thread::sleep_for(kPause);
      mutex.lock();
      protect(true);
    } else {
      break;
    }
  }
  protect(false);
  if (fault.ok()) return {};
  error = fault.message();
  return ofsdp::fault("{}", error);
}

namespace ofsdp::counting {

NativeStream::NativeStream() : ofsdp_native_stream{enqueue} {}

void NativeStream::enqueue(ofsdp_native_stream* native, void (*function)(void*),
                           const void* arguments, size_t bytes) {
  const auto& to = *static_cast<NativeStream*>(native);
  const auto* given = static_cast<const std::byte*>(arguments);
  const std::lock_guard lock(to.device->mutex);
  ++to.device->counts["native_launches"];
  to.device->put(to.stream, [function, copy = std::vector(given, given + bytes)]() mutable {
    function(copy.data());
    return Status{};
  });
}

GraphRun::GraphRun(const ofsdp_device_graph& graph) {
  for (const auto& [stream, operations] : graph.streams) {
    lines_.push_back({&operations});
    left_ += operations.size();
    for (const Operation& operation : operations) {
      if (operation.kind == Kind::kSignal) signals_[&operation] = ++operation.event->recorded;
    }
  }
}

bool GraphRun::able(const Line& line) const {
  if (line.next == line.operations->size()) return false;
  const Operation& head = (*line.operations)[line.next];
  if (head.kind == Kind::kWait) return reached_.contains({head.event, head.generation});
  return !head.ready || head.ready();
}

bool GraphRun::able() const {
  return over() || std::ranges::any_of(lines_, [this](const Line& line) { return able(line); });
}

Status GraphRun::run_one(ofsdp_device& device) {
  std::vector<Line*> able_lines;
  for (Line& line : lines_) {
    if (able(line)) able_lines.push_back(&line);
  }
  if (able_lines.empty()) return {};
  Line& line = *able_lines[device.draw(able_lines.size())];
  const Operation& operation = (*line.operations)[line.next++];
  --left_;
  if (operation.kind == Kind::kSignal) {
    operation.event->reached = std::max(operation.event->reached, signals_.at(&operation));
  } else if (operation.kind == Kind::kRecord) {
    reached_.insert({operation.event, operation.generation});
  }
  return operation.kind == Kind::kWork ? operation.work() : Status{};
}

}  // namespace ofsdp::counting

namespace ofsdp::counting {
namespace {

ofsdp_stream* make_stream(ofsdp_device* device, int32_t) {
  auto* stream = new ofsdp_stream;
  stream->index = static_cast<int>(device->streams.size());
  stream->native.device = device;
  stream->native.stream = stream;
  device->streams.push_back(stream);
  return stream;
}

void* native_stream(ofsdp_device*, ofsdp_stream* stream) {
  return static_cast<ofsdp_native_stream*>(&stream->native);
}

void drop_stream(ofsdp_device* device, ofsdp_stream* stream) {
  (void)device->run_until([&] { return stream->queue.empty(); });
  std::erase(device->streams, stream);
  delete stream;
}

ofsdp_event* make_event(ofsdp_device* device) {
  ++device->counts["events_made"];
  return new ofsdp_event;
}

void drop_event(ofsdp_device*, ofsdp_event* event) { delete event; }

int32_t record(ofsdp_device* device, ofsdp_event* event, ofsdp_stream* stream) {
  event->capture = stream->capture;
  event->stream = stream;
  event->signals = false;
  return device->push(stream, {Kind::kRecord, nullptr, event, ++event->recorded, nullptr, nullptr});
}

int32_t signal(ofsdp_device* device, ofsdp_event* event, ofsdp_stream* stream) {
  if (stream->capture == nullptr) return record(device, event, stream);
  event->capture = nullptr;
  event->stream = stream;
  event->signals = true;
  return device->push(stream, {Kind::kSignal, nullptr, event, 0, nullptr, nullptr});
}

// Also how a stream joins a capture.
int32_t wait(ofsdp_device* device, ofsdp_stream* stream, ofsdp_event* event) {
  if (event->signals) return device->violation("a stream waits for a graph's signal to the host");
  if (event->recorded == 0) return device->violation("a stream waits for an event never recorded");
  if (stream->capture != event->capture) {
    if (stream->capture != nullptr) {
      return device->violation("a captured stream waits for an event from outside");
    }
    if (!device->captures.contains(event->capture)) {
      return device->violation("a stream waits for an event of a capture that has ended");
    }
    stream->capture = event->capture;
  }
  return device->push(stream, {Kind::kWait, nullptr, event, event->recorded, nullptr, nullptr});
}

int32_t await(ofsdp_device* device, ofsdp_event* event) {
  if (device->capturing()) return device->violation("the host waits in a capture");
  if (event->recorded == 0) return device->violation("the host waits for an event never recorded");
  if (event->capture != nullptr) return device->violation("the host waits for an event of a graph");
  const uint64_t generation = event->recorded;
  ++device->counts["awaits"];
  // Nothing behind it: the stream runs dry while the host waits.
  const auto& queue = event->stream->queue;
  const bool last =
      queue.empty() || (queue.back().kind == Kind::kRecord && queue.back().event == event);
  if (last) ++device->counts["awaits_that_leave_stream_" + std::to_string(event->stream->index)];
  const Status status = device->run_until([&] { return event->reached >= generation; });
  return status.ok() ? 0 : 1;
}

// As await, but comes back where other ranks have to be waited for.
int32_t reached(ofsdp_device* device, ofsdp_event* event) {
  if (device->capturing()) return device->violation("the host waits in a capture") * -1;
  const uint64_t generation = event->recorded;
  const auto done = [&] { return event->reached >= generation; };
  if (!device->run_until(done, false).ok()) return -1;
  return done() ? 1 : 0;
}

int32_t synchronize(ofsdp_device* device) {
  if (device->capturing()) return device->violation("the host waits in a capture");
  ++device->counts["synchronizations"];
  const Status status = device->run_until([&] {
    return std::ranges::all_of(device->streams, [](auto* s) { return s->queue.empty(); });
  });
  return status.ok() ? 0 : 1;
}

int32_t copy(ofsdp_device* device, ofsdp_stream* stream, void* dst, const void* src, size_t bytes) {
  if (!device->holds(dst, bytes, true, "copy to") || !device->holds(src, bytes, true, "copy from"))
    return 1;
  const bool from_host = device->pinned(src), to_host = device->pinned(dst);
  const char* way = from_host == to_host ? "bytes_inside" : from_host ? "bytes_up" : "bytes_down";
  return device->put(stream, [=] {
    device->counts[way] += static_cast<long>(bytes);
    std::memmove(dst, src, bytes);
    return Status{};
  });
}

int32_t clear(ofsdp_device* device, ofsdp_stream* stream, void* dst, size_t bytes) {
  if (!device->holds(dst, bytes, false, "clear")) return 1;
  return device->put(stream, [=] {
    std::memset(dst, 0, bytes);
    return Status{};
  });
}

int32_t capture_begin(ofsdp_device* device, ofsdp_stream* stream) {
  if (stream->capture != nullptr) return device->violation("a capture begins in a capture");
  auto* graph = new ofsdp_device_graph;
  graph->origin = stream;
  stream->capture = graph;
  device->captures.insert(graph);
  return 0;
}

// The last operation of each joined stream is an event that the origin waits for.
bool joined(const ofsdp_device_graph& graph) {
  const auto origin = graph.streams.find(graph.origin);
  for (const auto& [stream, operations] : graph.streams) {
    if (stream == graph.origin || operations.empty()) continue;
    const Operation& last = operations.back();
    if (last.kind != Kind::kRecord || origin == graph.streams.end()) return false;
    const bool waited = std::ranges::any_of(origin->second, [&](const Operation& o) {
      return o.kind == Kind::kWait && o.event == last.event && o.generation == last.generation;
    });
    if (!waited) return false;
  }
  return true;
}

ofsdp_device_graph* capture_end(ofsdp_device* device, ofsdp_stream* stream) {
  ofsdp_device_graph* graph = stream->capture;
  if (graph == nullptr || graph->origin != stream) {
    device->violation("a capture ends that did not begin");
    return nullptr;
  }
  for (ofsdp_stream* other : device->streams) {
    if (other->capture == graph) other->capture = nullptr;
  }
  device->captures.erase(graph);
  ++device->counts["captures"];
  if (joined(*graph)) return graph;
  device->violation("a captured stream is not joined again");
  delete graph;
  return nullptr;
}

int32_t launch(ofsdp_device* device, ofsdp_device_graph* graph, ofsdp_stream* stream) {
  if (device->capturing()) return device->violation("a graph is launched in a capture");
  ++device->counts["graph_launches"];
  ++device->counts["operations"];
  Operation run{Kind::kGraph, nullptr, nullptr, 0, nullptr, std::make_shared<GraphRun>(*graph)};
  return device->push(stream, std::move(run));
}

void drop_graph(ofsdp_device* device, ofsdp_device_graph* graph) {
  (void)synchronize(device);
  --device->counts["synchronizations"];
  delete graph;
}

}  // namespace

void add_order(ofsdp_device_table& table) {
  table.make_stream = Locked<make_stream>::call;
  table.drop_stream = Locked<drop_stream>::call;
  table.native_stream = Locked<native_stream>::call;
  table.make_event = Locked<make_event>::call;
  table.drop_event = Locked<drop_event>::call;
  table.record = Locked<record>::call;
  table.signal = Locked<signal>::call;
  table.wait = Locked<wait>::call;
  table.await = Locked<await>::call;
  table.synchronize = Locked<synchronize>::call;
  table.copy = Locked<copy>::call;
  table.clear = Locked<clear>::call;
  table.capture_begin = Locked<capture_begin>::call;
  table.capture_end = Locked<capture_end>::call;
  table.reached = Locked<reached>::call;
  table.launch = Locked<launch>::call;
  table.drop_graph = Locked<drop_graph>::call;
  add_clock(table);
}

}  // namespace ofsdp::counting
