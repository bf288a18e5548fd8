// Streams, events, captures: dependencies, and the order in which work runs.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {

using Kind = Operation::Kind;

size_t CountingDevice::draw(size_t below) {
  random = random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<size_t>(random >> 33) % below;
}

Status CountingDevice::push(ofsdp_stream* stream, Operation operation) {
  if (stream->capture == nullptr) {
    stream->queue.push_back(std::move(operation));
  } else {
    stream->capture->streams[stream].push_back(std::move(operation));
  }
  return {};
}

Status CountingDevice::put(ofsdp_stream* stream, std::function<Status()> work) {
  ++counts[stream->capture == nullptr ? "operations" : "captured_operations"];
  return push(stream, {Kind::kWork, std::move(work), nullptr, 0, nullptr, nullptr});
}

Status CountingDevice::run_one(Operation& operation) {
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

// Runs some operations from the head of one queue.
Status CountingDevice::run_some(ofsdp_stream& stream) {
  for (size_t n = 1 + draw(8); n > 0 && !stream.queue.empty(); --n) {
    Operation& head = stream.queue.front();
    if (!may_run(head)) break;
    OFSDP_RETURN_IF_ERROR(run_one(head));
    if (head.kind != Kind::kGraph || head.graph->over()) stream.queue.pop_front();
  }
  return {};
}

// Runs ready heads of queues, in a drawn order, until `reached`.
Status CountingDevice::run_until(const std::function<bool()>& reached, bool waits) {
  constexpr std::chrono::microseconds kPause{50};
  protect(true);
  while (!reached() && failure.ok()) {
    std::vector<ofsdp_stream*> able;
    for (ofsdp_stream* stream : streams) {
      if (!stream->queue.empty() && may_run(stream->queue.front())) able.push_back(stream);
    }
    if (!able.empty()) {
      failure = run_some(*able[draw(able.size())]);
    } else if (groups.empty()) {
      failure = violation("streams wait for each other for ever");
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
  if (failure.ok()) return {};
  error = failure.message();
  return refused();
}

NativeStream::NativeStream() : ofsdp_native_stream{enqueue} {}

void NativeStream::enqueue(ofsdp_native_stream* native, void (*function)(void*),
                           const void* arguments, size_t bytes) {
  const auto& to = *static_cast<NativeStream*>(native);
  const auto* given = static_cast<const std::byte*>(arguments);
  const std::lock_guard lock(to.device->mutex);
  ++to.device->counts["native_launches"];
  (void)to.device->put(to.stream, [function, copy = std::vector(given, given + bytes)]() mutable {
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

Status GraphRun::run_one(CountingDevice& device) {
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

Result<ofsdp_stream*> CountingDevice::make_stream(bool) {
  const std::lock_guard lock(mutex);
  auto* stream = new ofsdp_stream;
  stream->index = static_cast<int>(streams.size());
  stream->native.device = this;
  stream->native.stream = stream;
  streams.push_back(stream);
  return stream;
}

void* CountingDevice::native_stream(ofsdp_stream* stream) {
  return static_cast<ofsdp_native_stream*>(&stream->native);
}

void CountingDevice::drop_stream(ofsdp_stream* stream) {
  const std::lock_guard lock(mutex);
  (void)run_until([&] { return stream->queue.empty(); });
  std::erase(streams, stream);
  delete stream;
}

Result<ofsdp_event*> CountingDevice::make_event(bool timed) {
  const std::lock_guard lock(mutex);
  ++counts["events_made"];
  auto* event = new ofsdp_event;
  event->timed = timed;
  return event;
}

void CountingDevice::drop_event(ofsdp_event* event) {
  const std::lock_guard lock(mutex);
  delete event;
}

Status CountingDevice::record(ofsdp_event* event, ofsdp_stream* stream) {
  const std::lock_guard lock(mutex);
  event->capture = stream->capture;
  event->stream = stream;
  event->signals = false;
  return push(stream, {Kind::kRecord, nullptr, event, ++event->recorded, nullptr, nullptr});
}

Status CountingDevice::signal(ofsdp_event* event, ofsdp_stream* stream) {
  const std::lock_guard lock(mutex);
  if (stream->capture == nullptr) {
    event->capture = nullptr;
    event->stream = stream;
    event->signals = false;
    return push(stream, {Kind::kRecord, nullptr, event, ++event->recorded, nullptr, nullptr});
  }
  event->capture = nullptr;
  event->stream = stream;
  event->signals = true;
  return push(stream, {Kind::kSignal, nullptr, event, 0, nullptr, nullptr});
}

// A stream also joins a capture by this call.
Status CountingDevice::wait(ofsdp_stream* stream, ofsdp_event* event) {
  const std::lock_guard lock(mutex);
  if (event->signals) return violation("a stream waits for a graph's signal to the host");
  if (event->recorded == 0) return violation("a stream waits for an event never recorded");
  if (stream->capture != event->capture) {
    if (stream->capture != nullptr) {
      return violation("a captured stream waits for an event from outside");
    }
    if (!captures.contains(event->capture)) {
      return violation("a stream waits for an event of a capture that has ended");
    }
    stream->capture = event->capture;
  }
  return push(stream, {Kind::kWait, nullptr, event, event->recorded, nullptr, nullptr});
}

Status CountingDevice::await(ofsdp_event* event) {
  const std::lock_guard lock(mutex);
  if (capturing()) return violation("the host waits in a capture");
  if (event->recorded == 0) return violation("the host waits for an event never recorded");
  if (event->capture != nullptr) return violation("the host waits for an event of a graph");
  const uint64_t generation = event->recorded;
  ++counts["awaits"];
  // No work after it: the stream runs dry while the host waits.
  const auto& queue = event->stream->queue;
  const bool last =
      queue.empty() || (queue.back().kind == Kind::kRecord && queue.back().event == event);
  if (last) ++counts["awaits_that_leave_stream_" + std::to_string(event->stream->index)];
  return run_until([&] { return event->reached >= generation; });
}

// Like await, but returns if other ranks must go on first.
Result<bool> CountingDevice::reached(ofsdp_event* event) {
  const std::lock_guard lock(mutex);
  if (capturing()) return violation("the host waits in a capture");
  const uint64_t generation = event->recorded;
  const auto done = [&] { return event->reached >= generation; };
  OFSDP_RETURN_IF_ERROR(run_until(done, false));
  return done();
}

Status CountingDevice::wait_for_all() {
  if (capturing()) return violation("the host waits in a capture");
  return run_until(
      [&] { return std::ranges::all_of(streams, [](auto* s) { return s->queue.empty(); }); });
}

Status CountingDevice::synchronize() {
  const std::lock_guard lock(mutex);
  if (!capturing()) ++counts["synchronizations"];
  return wait_for_all();
}

Status CountingDevice::copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (!holds(dst, bytes, true, "copy to") || !holds(src, bytes, true, "copy from"))
    return refused();
  const bool from_host = pinned(src), to_host = pinned(dst);
  const char* way = from_host == to_host ? "bytes_inside" : from_host ? "bytes_up" : "bytes_down";
  return put(stream, [=, this] {
    counts[way] += static_cast<long>(bytes);
    std::memmove(dst, src, bytes);
    return Status{};
  });
}

Status CountingDevice::clear(ofsdp_stream* stream, void* dst, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (!holds(dst, bytes, false, "clear")) return refused();
  return put(stream, [=] {
    std::memset(dst, 0, bytes);
    return Status{};
  });
}

Status CountingDevice::capture_begin(ofsdp_stream* stream) {
  const std::lock_guard lock(mutex);
  if (stream->capture != nullptr) return violation("a capture begins in a capture");
  auto* graph = new ofsdp_device_graph;
  graph->origin = stream;
  stream->capture = graph;
  captures.insert(graph);
  return {};
}

namespace {

// Each joined stream ends with an event that the origin waits for.
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

}  // namespace

Result<ofsdp_device_graph*> CountingDevice::capture_end(ofsdp_stream* stream) {
  const std::lock_guard lock(mutex);
  ofsdp_device_graph* graph = stream->capture;
  if (graph == nullptr || graph->origin != stream) {
    return violation("a capture ends that did not begin");
  }
  for (ofsdp_stream* other : streams) {
    if (other->capture == graph) other->capture = nullptr;
  }
  captures.erase(graph);
  ++counts["captures"];
  if (joined(*graph)) {
    graphs.insert(graph);
    return graph;
  }
  delete graph;
  return violation("a captured stream is not joined again");
}

Status CountingDevice::launch(ofsdp_device_graph* graph, ofsdp_stream* stream) {
  const std::lock_guard lock(mutex);
  if (capturing()) return violation("a graph is launched in a capture");
  ++counts["graph_launches"];
  ++counts["operations"];
  Operation run{Kind::kGraph, nullptr, nullptr, 0, nullptr, std::make_shared<GraphRun>(*graph)};
  return push(stream, std::move(run));
}

void CountingDevice::drop_graph(ofsdp_device_graph* graph) {
  const std::lock_guard lock(mutex);
  (void)wait_for_all();
  graphs.erase(graph);
  delete graph;
}

// A clock that ticks with each operation: an operation that runs later has a later time.
Status CountingDevice::elapsed(ofsdp_event* first, ofsdp_event* then, double* microseconds) {
  const std::lock_guard lock(mutex);
  for (const ofsdp_event* event : {first, then}) {
    if (!event->timed) return violation("a time of an event that is not timed");
    if (event->capture != nullptr) return violation("a time of an event of a graph");
    if (event->recorded == 0 || event->reached < event->recorded) {
      return violation("a time of an event that was not reached");
    }
  }
  *microseconds = static_cast<double>(then->at) - static_cast<double>(first->at);
  return {};
}

}  // namespace ofsdp::counting
