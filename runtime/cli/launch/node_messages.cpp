#include "runtime/cli/launch/node_messages.h"

#include <climits>

#include "fsdp/comm/communicator.h"

namespace ofsdp::cli {
namespace {

using nlohmann::json;

// Reads members one by one; once one is wrong the whole is.
class Reader {
 public:
  explicit Reader(const json& message) : message_(message) {}

  void number(const char* name, int least, int most, int& value) {
    const auto found = message_.find(name);
    const bool whole = found != message_.end() && found->is_number_integer();
    const int64_t read = whole ? found->get<int64_t>() : int64_t{least} - 1;
    good_ = good_ && read >= least && read <= most;
    if (good_) value = static_cast<int>(read);
  }
  void text(const char* name, std::string& value) {
    const auto found = message_.find(name);
    const bool is_text = found != message_.end() && found->is_string();
    good_ = good_ && is_text && found->get_ref<const std::string&>().size() <= kMostText;
    if (good_) value = found->get<std::string>();
  }
  void flag(const char* name, bool& value) {
    const auto found = message_.find(name);
    good_ = good_ && found != message_.end() && found->is_boolean();
    if (good_) value = found->get<bool>();
  }
  bool good() const { return good_; }

 private:
  const json& message_;
  bool good_ = true;
};

std::string cut(const std::string& text) { return text.substr(0, kMostText); }

}  // namespace

std::string kind_of(const json& message) { return message.value("kind", ""); }

std::string text_in(const json& message, const char* name) {
  std::string text;
  Reader(message).text(name, text);
  return text;
}

bool flag_in(const json& message, const char* name) {
  bool flag = false;
  Reader(message).flag(name, flag);
  return flag;
}

int port_in(const json& message) {
  int port = 29500;
  Reader(message).number("free_port", 1, 65535, port);
  return port;
}

json to_json(const Hello& hello) {
  return {{"kind", "hello"},       {"magic", kRendezvousMagic},    {"version", hello.version},
          {"job", cut(hello.job)}, {"node_rank", hello.node_rank}, {"nnodes", hello.nnodes},
          {"nproc", hello.nproc},  {"free_port", hello.free_port}, {"host", cut(hello.host)},
          {"own", hello.own}};
}

std::optional<Hello> read_hello(const json& message) {
  if (kind_of(message) != "hello" || text_in(message, "magic") != kRendezvousMagic) return {};
  Hello hello;
  Reader reader(message);
  reader.number("version", 1, INT_MAX, hello.version);
  if (reader.good() && hello.version != kRendezvousVersion) return hello;  // the rest may differ
  reader.text("job", hello.job);
  reader.number("node_rank", -1, kMostRanks - 1, hello.node_rank);
  reader.number("nnodes", 1, kMostRanks, hello.nnodes);
  reader.number("nproc", 1, 4096, hello.nproc);
  reader.number("free_port", 1, 65535, hello.free_port);
  reader.text("host", hello.host);
  reader.flag("own", hello.own);
  return reader.good() ? std::optional(hello) : std::nullopt;
}

json to_json(const Outcome& outcome, int free_port) {
  return {{"kind", "ended"},
          {"free_port", free_port},
          {"status", outcome.status},
          {"spoke", outcome.spoke},
          {"interrupted", outcome.interrupted},
          {"line", cut(outcome.line)}};
}

std::optional<Outcome> read_outcome(const json& message) {
  Outcome outcome;
  Reader reader(message);
  reader.number("status", 0, 2, outcome.status);
  reader.flag("spoke", outcome.spoke);
  reader.flag("interrupted", outcome.interrupted);
  reader.text("line", outcome.line);
  return reader.good() ? std::optional(outcome) : std::nullopt;
}

json to_json(const Turn& turn) {
  const Assignment& a = turn.assignment;
  if (!turn.start) return {{"kind", "end"}, {"status", turn.status}, {"line", cut(turn.line)}};
  return {{"kind", "start"},
          {"node", a.node},
          {"nodes", a.nodes},
          {"first_rank", a.first_rank},
          {"world", a.world},
          {"first_world", a.first_world},
          {"restart", a.restart},
          {"from_latest", a.from_latest},
          {"run_id", a.run_id},
          {"master_address", a.master_address},
          {"master_port", a.master_port},
          {"line", cut(turn.line)},
          {"notice", cut(turn.notice)}};
}

std::optional<Turn> read_turn(const json& message) {
  Turn turn;
  turn.start = kind_of(message) == "start";
  Assignment& a = turn.assignment;
  Reader reader(message);
  reader.text("line", turn.line);
  if (!turn.start) {
    reader.number("status", 0, 2, turn.status);
    return reader.good() ? std::optional(turn) : std::nullopt;
  }
  reader.number("nodes", 1, kMostRanks, a.nodes);
  reader.number("node", 0, a.nodes - 1, a.node);
  reader.number("world", 1, INT_MAX, a.world);
  reader.number("first_rank", 0, a.world - 1, a.first_rank);
  reader.number("first_world", 1, INT_MAX, a.first_world);
  reader.number("restart", 0, INT_MAX, a.restart);
  reader.flag("from_latest", a.from_latest);
  reader.text("run_id", a.run_id);
  reader.text("master_address", a.master_address);
  reader.number("master_port", 1, 65535, a.master_port);
  reader.text("notice", turn.notice);
  return reader.good() ? std::optional(turn) : std::nullopt;
}

}  // namespace ofsdp::cli
