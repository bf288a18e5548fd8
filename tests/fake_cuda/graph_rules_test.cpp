// Planted errors in captures and graphs: the runtime that checks the rules has to find each.
#include <set>
#include <thread>

#include "tests/fake_cuda/planted.h"

namespace fake_cuda {
namespace {

class GraphRules : public Planted {
 protected:
  // Adds `number` to the first number in the device's memory.
  void add(cudaStream_t stream, int number) {
    const Operand operand{"number", numbers_, sizeof(int)};
    EXPECT_EQ(enqueue("add", stream, {operand}, [=, this] { *numbers_ += number; }), cudaSuccess);
  }
  void multiply(cudaStream_t stream, int number) {
    const Operand operand{"number", numbers_, sizeof(int)};
    EXPECT_EQ(enqueue("multiply", stream, {operand}, [=, this] { *numbers_ *= number; }),
              cudaSuccess);
  }
  cudaGraphExec_t executable(unsigned flags = cudaGraphInstantiateFlagUseNodePriority) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    EXPECT_EQ(end(&graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&made, graph, flags), cudaSuccess);
    cudaGraphDestroy(graph);
    return made;
  }
  int launched(cudaGraphExec_t graph, int times = 1) {
    cudaMemsetAsync(memory_, 0, kBytes, first_);
    for (int i = 0; i < times; ++i) EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
    cudaMemcpyAsync(results_, numbers_, sizeof(int), cudaMemcpyDefault, first_);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    return results_[0];
  }
};

// --- no error ---
TEST_F(GraphRules, AGraphRunsItsNodesInTheOrderOfItsEdges) {
  begin();
  add(first_, 3);
  order(first_, second_);
  add(second_, 4);
  order(second_, first_);
  multiply(first_, 2);
  const cudaGraphExec_t graph = executable();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    draw_from(seed);
    EXPECT_EQ(launched(graph, 2), ((0 + 7) * 2 + 7) * 2);
  }
  cudaGraphExecDestroy(graph);
}

// 3 and 4 in either order, since no event is between them.
TEST_F(GraphRules, WithoutAnEdgeItsNodesRunInEitherOrder) {
  begin();
  order(first_, second_);
  add(first_, 3);
  multiply(second_, 2);
  order(second_, first_);
  const cudaGraphExec_t graph = executable();
  std::set<int> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    draw_from(seed);
    seen.insert(launched(graph));
  }
  EXPECT_EQ(seen, (std::set<int>{3, 6}));
  cudaGraphExecDestroy(graph);
}

TEST_F(GraphRules, AnEventMayBeRecordedAgainInACapture) {
  begin();
  for (int i = 0; i < 3; ++i) {
    order(first_, second_);
    add(second_, 1);
    order(second_, first_);
    add(first_, 1);
  }
  const cudaGraphExec_t graph = executable();
  EXPECT_EQ(launched(graph), 6);
  cudaGraphExecDestroy(graph);
}

// CUDA does not define whether the event belongs to an earlier launch until this launch reaches it.
TEST_F(GraphRules, AnEventOfAGraphMayStillBeOfTheLaunchBefore) {
  begin();
  add(first_, 1);
  cudaMemcpyAsync(results_, numbers_, sizeof(int), cudaMemcpyDefault, first_);
  cudaEventRecordWithFlags(other_, first_, cudaEventRecordExternal);
  const cudaGraphExec_t graph = executable();
  std::set<bool> arrived;
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 40; ++k) add(first_, 0);  // more than the wait happens to run
    const int before = results_[0];
    EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(other_), cudaSuccess);
    arrived.insert(results_[0] != before);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_NE(results_[0], before);
  }
  EXPECT_EQ(arrived, (std::set<bool>{false, true}));
  cudaGraphExecDestroy(graph);
}

// --- calls that a capture does not see ---
TEST_F(GraphRules, ACaptureSeesEveryCallOfItsThread) {
  void* made = nullptr;
  const std::vector<std::pair<const char*, std::function<cudaError_t()>>> calls = {
      {"cudaMalloc", [&] { return cudaMalloc(&made, 256); }},
      {"cudaFree", [this] { return cudaFree(memory_); }},
      {"cudaHostAlloc", [&] { return cudaHostAlloc(&made, 256, 0); }},
      {"cudaMemcpy", [this] { return cudaMemcpy(memory_, pinned_, 4, cudaMemcpyDefault); }},
      {"cudaMemset", [this] { return cudaMemset(memory_, 0, 4); }},
      {"cudaStreamSynchronize", [this] { return cudaStreamSynchronize(second_); }},
      {"cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); }},
      {"cudaEventSynchronize", [this] { return cudaEventSynchronize(other_); }},
      {"cudaEventQuery", [this] { return cudaEventQuery(other_); }}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    cudaEventRecord(other_, second_);
    begin();
    EXPECT_NE(call(), cudaSuccess);
    expect_broken("a capture sees every call meanwhile", name, "");
    EXPECT_EQ(cudaMemsetAsync(memory_, 0, 4, first_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    expect_none();
  }
}

TEST_F(GraphRules, ModesSayWhichThreadsACaptureConcerns) {
  const auto from_another_thread = [this](cudaStreamCaptureMode thread) {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      cudaThreadExchangeStreamCaptureMode(&thread);
      error = cudaStreamSynchronize(second_);
    }).join();
    return error;
  };
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(from_another_thread(cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(from_another_thread(cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(from_another_thread(cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  expect_broken("a capture sees every call meanwhile", "cudaStreamSynchronize", "stream ");
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(GraphRules, TheHostAsksForNoEventThatACaptureRecorded) {
  begin(cudaStreamCaptureModeRelaxed);
  cudaEventRecord(event_, first_);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  expect_broken("the host asks for no event that a capture recorded", "cudaEventQuery", "event ");
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(GraphRules, TheLegacyStreamRestsWhileABlockingStreamCaptures) {
  cudaStream_t blocking = nullptr;
  cudaStreamCreate(&blocking);
  cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaMemsetAsync(memory_, 0, 4, nullptr), cudaErrorStreamCaptureImplicit);
  expect_broken("the legacy stream rests while a stream captures that waits for it",
                "cudaMemsetAsync", "stream ");
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  cudaStreamDestroy(blocking);
}

TEST_F(GraphRules, PageableMemoryIsNotCopiedInACapture) {
  int local = 0;
  begin();
  EXPECT_NE(cudaMemcpyAsync(memory_, &local, 4, cudaMemcpyDefault, first_), cudaSuccess);
  expect_broken("no pageable memory in a capture", "cudaMemcpyAsync", "in no allocation");
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

// --- forks and joins ---
TEST_F(GraphRules, AForkIsJoined) {
  begin();
  order(first_, second_);
  add(second_, 1);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  expect_broken("each stream of a capture is joined to its origin", "cudaStreamEndCapture",
                "after add");
}

TEST_F(GraphRules, WorkBehindTheJoinIsNotJoined) {
  begin();
  order(first_, second_);
  add(second_, 1);
  order(second_, first_);
  add(second_, 1);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  expect_broken("each stream of a capture is joined to its origin", "cudaStreamEndCapture",
                "after add");
}

TEST_F(GraphRules, ACaptureWaitsForNoWorkOutsideOfIt) {
  cudaEventRecord(event_, second_);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaErrorStreamCaptureIsolation);
  expect_broken("a capture waits for no work outside of it", "cudaStreamWaitEvent", "event ");
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(GraphRules, AnEventOfAnEndedCaptureIsRecordedAnew) {
  begin();
  cudaEventRecord(event_, first_);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaErrorCapturedEvent);
  expect_broken("an event of an ended capture is recorded anew before it is waited for",
                "cudaStreamWaitEvent", "event ");
  order(first_, second_);
}

TEST_F(GraphRules, TwoCapturesAreNotMerged) {
  begin();
  cudaEventRecord(event_, first_);
  cudaStreamBeginCapture(second_, cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaErrorStreamCaptureMerge);
  expect_broken("an event is waited for in its own capture", "cudaStreamWaitEvent", "event ");
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(GraphRules, ACaptureEndsWhereItBegan) {
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  expect_broken("a capture begins before it ends", "cudaStreamEndCapture", "stream ");
  begin();
  order(first_, second_);
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureUnmatched);
  expect_broken("a capture ends on the stream that began it", "cudaStreamEndCapture", "stream ");
  std::thread([&] {
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureWrongThread);
  }).join();
  expect_broken("a capture ends on the thread that began it", "cudaStreamEndCapture", "stream ");
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(GraphRules, ACaptureIsNotLeftOpen) {
  begin();
  note_what_is_left();
  const std::vector<std::string> lines = take_broken_rules();
  EXPECT_THAT(lines, testing::Contains(testing::StartsWith(
                         "cuda rule: a capture ends; cudaStreamBeginCapture: stream ")));
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(GraphRules, AnExternalRecordIsInACapture) {
  EXPECT_NE(cudaEventRecordWithFlags(event_, first_, cudaEventRecordExternal), cudaSuccess);
  expect_broken("an external record is in a capture", "cudaEventRecordWithFlags", "event ");
}

// --- graphs ---
TEST_F(GraphRules, AGraphOfSeveralPrioritiesIsInstantiatedWithThem) {
  begin();
  add(first_, 1);
  order(first_, second_);
  add(second_, 1);
  order(second_, first_);
  const cudaGraphExec_t graph = executable(0);
  expect_broken("a graph of streams of several priorities is instantiated with UseNodePriority",
                "cudaGraphInstantiate", "flags 0");
  cudaGraphExecDestroy(graph);
}

TEST_F(GraphRules, ADestroyedGraphIsNotLaunched) {
  begin();
  add(first_, 1);
  const cudaGraphExec_t graph = executable();
  cudaGraphExecDestroy(graph);
  EXPECT_NE(cudaGraphLaunch(graph, first_), cudaSuccess);
  expect_broken("an executable graph lives", "cudaGraphLaunch", "graph ");
}

TEST_F(GraphRules, AnEventOfAGraphLivesWhileItIsLaunched) {
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  begin();
  cudaEventRecordWithFlags(event, first_, cudaEventRecordExternal);
  const cudaGraphExec_t graph = executable();
  cudaEventDestroy(event);
  EXPECT_NE(cudaGraphLaunch(graph, first_), cudaSuccess);
  expect_broken("an event that a graph records lives", "cudaGraphLaunch", "event ");
  cudaGraphExecDestroy(graph);
}

TEST_F(GraphRules, AGraphIsNotLaunchedInACapture) {
  begin();
  add(first_, 1);
  const cudaGraphExec_t graph = executable();
  begin();
  EXPECT_NE(cudaGraphLaunch(graph, first_), cudaSuccess);
  expect_broken("a graph is not launched in a capture", "cudaGraphLaunch", "graph ");
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  cudaGraphExecDestroy(graph);
}

// NCCL counts the graphs that hold collectives of a communicator by user objects.
TEST_F(GraphRules, AUserObjectLivesAsLongAsItsGraphs) {
  int destroyed = 0;
  begin();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  cudaStreamGetCaptureInfo_v2(first_, &status, nullptr, &graph, nullptr, nullptr);
  ASSERT_EQ(status, cudaStreamCaptureStatusActive);
  cudaUserObject_t object = nullptr;
  cudaUserObjectCreate(
      &object, &destroyed, [](void* count) { ++*static_cast<int*>(count); }, 1,
      cudaUserObjectNoDestructorSync);
  cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  add(first_, 1);
  const cudaGraphExec_t made = executable();
  EXPECT_EQ(cudaGraphLaunch(made, first_), cudaSuccess);
  cudaGraphExecDestroy(made);
  EXPECT_EQ(destroyed, 0);
  cudaStreamSynchronize(first_);
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace fake_cuda
