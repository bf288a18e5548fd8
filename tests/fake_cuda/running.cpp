// Runs queued work: heads of streams and nodes of graphs, in a drawn order of the ready ones.
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

// Opens device memory while the object lives.
class Running {
 public:
  Running() { open_memory(true); }
  ~Running() { open_memory(false); }
};

bool may_run(const Launched& launched) { return launched.turn == launched.graph->done; }

bool may_run(const Queued& queued) {
  for (const auto& [stream, far] : queued.behind) {
    if (stream->done < far) return false;
  }
  if (queued.waits_for != nullptr) return queued.waits_for->reached >= queued.generation;
  return queued.launched == nullptr || may_run(*queued.launched);
}

void reach(CUevent_st& event, uint64_t generation) {
  event.reached = std::max(event.reached, generation);
  event.at = runtime().clock;
}

void work(const std::string& call, const std::function<void()>& run) {
  runtime().running = call;
  run();
  runtime().running.clear();
}

void run_node(Launched& launched, size_t index) {
  const std::vector<Node>& nodes = launched.body->nodes;
  const Node& node = nodes[index];
  if (node.work != nullptr) work(node.call, node.work);
  if (node.event != nullptr) {
    const auto it = launched.generations.find(index);
    reach(*node.event, it != launched.generations.end() ? it->second : ++node.event->recorded);
  }
  --launched.left;
  for (size_t i = index + 1; i < nodes.size(); ++i) {
    if (nodes[i].after.contains(index) && --launched.missing[i] == 0) launched.ready.push_back(i);
  }
}

// Runs one ready node; true once all have run.
bool advance(Launched& launched) {
  if (launched.left > 0) {
    const size_t drawn = runtime().draw(launched.ready.size());
    const size_t node = launched.ready[drawn];
    launched.ready.erase(launched.ready.begin() + static_cast<std::ptrdiff_t>(drawn));
    run_node(launched, node);
  }
  if (launched.left > 0) return false;
  ++launched.graph->done;
  return true;
}

void run_head(CUstream_st& stream) {
  ++runtime().clock;
  Queued& head = stream.queue.front();
  if (head.launched != nullptr && !advance(*head.launched)) return;
  if (head.work != nullptr) work(head.call, head.work);
  if (head.records != nullptr) reach(*head.records, head.generation);
  stream.queue.pop_front();
  ++stream.done;
}

// False if nothing may run.
bool run_one() {
  Runtime& r = runtime();
  std::vector<CUstream_st*> able;
  for (const auto& stream : r.streams) {
    if (!stream->queue.empty() && may_run(stream->queue.front())) able.push_back(stream.get());
  }
  if (able.empty()) return false;
  run_head(*able[r.draw(able.size())]);
  return true;
}

bool all_done() {
  for (const auto& stream : runtime().streams) {
    if (!stream->queue.empty()) return false;
  }
  return true;
}

}  // namespace

void run_some() {
  constexpr size_t kMax = 32;
  const Running running;
  for (size_t left = 1 + runtime().draw(kMax); left > 0 && run_one(); --left) {
  }
}

bool run_until(const Call& call, const std::function<bool()>& reached) {
  const Running running;
  while (!reached()) {
    if (run_one()) continue;
    say_broken("streams do not wait for each other for ever", call.name(), "what the host awaits");
    return false;
  }
  return true;
}

bool run_all(const Call& call) { return run_until(call, all_done); }

}  // namespace fake_cuda
