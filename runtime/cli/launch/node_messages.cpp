#include "runtime/cli/launch/node_messages.h"

#include <climits>

#include "fsdp/comm/communicator.h"

namespace ofsdp::cli {
namespace {

constexpr const char* kMagic = "fsdp-run rendezvous";
constexpr int kMostProcesses = 4096;  // of a host

}  // namespace

void list_fields(StoreFields& fields, NodeHello& hello) {
  fields.text("job", hello.job);
  fields.number("node_rank", -1, kMostRanks - 1, hello.node_rank);
  fields.number("nnodes", 1, kMostRanks, hello.nnodes);
  fields.number("nproc", 1, kMostProcesses, hello.nproc);
  fields.number("free_port", 1, 65535, hello.free_port);
  fields.text("host", hello.host);
  fields.flag("own", hello.own);
}

void list_fields(StoreFields& fields, Refusal& refusal) {
  fields.text("why", refusal.why);
  fields.flag("again", refusal.again);
}

void list_fields(StoreFields& fields, StopOrder& stop) {
  fields.number("restart", 0, INT_MAX, stop.restart);
}

void list_fields(StoreFields& fields, Outcome& outcome) {
  fields.number("status", 0, 2, outcome.status);
  fields.flag("spoke", outcome.spoke);
  fields.flag("interrupted", outcome.interrupted);
  fields.text("line", outcome.line);
  fields.number("free_port", 1, 65535, outcome.free_port);
}

void list_fields(StoreFields& fields, Turn& turn) {
  fields.flag("start", turn.start);
  fields.text("line", turn.line);
  if (!turn.start) return fields.number("status", 0, 2, turn.status);
  Assignment& a = turn.assignment;
  fields.number("nodes", 1, kMostRanks, a.nodes);
  fields.number("node", 0, a.nodes - 1, a.node);
  fields.number("world", 1, INT_MAX, a.world);
  fields.number("first_rank", 0, a.world - 1, a.first_rank);
  fields.number("first_world", 1, INT_MAX, a.first_world);
  fields.number("restart", 0, INT_MAX, a.restart);
  fields.flag("from_latest", a.from_latest);
  fields.text("run_id", a.run_id);
  fields.text("master_address", a.master_address);
  fields.number("master_port", 1, 65535, a.master_port);
  fields.text("notice", turn.notice);
}

Json hello_value(const NodeHello& hello) {
  Json value = to_value(hello);
  value["magic"] = kMagic;
  value["version"] = hello.version;
  return value;
}

std::optional<NodeHello> read_hello(const Json& value) {
  NodeHello hello;
  std::string magic;
  StoreFields fields(value);
  fields.text("magic", magic);
  fields.number("version", 1, INT_MAX, hello.version);
  if (!fields.good() || magic != kMagic) return std::nullopt;
  return hello.version == kRendezvousVersion ? from_value<NodeHello>(value) : hello;
}

}  // namespace ofsdp::cli
