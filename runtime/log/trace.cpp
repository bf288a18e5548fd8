#include "runtime/log/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/log/log_parts.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kLineBytes = 192;  // about a line
// As TraceRow orders them, from kCompute on.
constexpr std::array kRowNames{"compute",   "communication", "inputs up",
                               "copies up", "copies down",   "update on the host"};

int number(TraceRow row) { return static_cast<int>(row) - static_cast<int>(TraceRow::kCompute); }

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The text that all events in one step share.
struct StepText {
  bool shown = true;
  TraceRow row = TraceRow::kCompute;
  std::string name, category;  // quoted
};

StepText describe(const StepProgram& program, const Plan& plan, const Step& step) {
  const std::string kind = step_name(step.kind);
  const StepTraits& of = traits(step.kind);
  StepText text{of.traced, of.waits ? TraceRow::kCommunication : TraceRow::kCompute, quoted(kind),
                quoted(kind)};
  if (of.subject == StepSubject::kNode) {
    const Node& node = program.graph.nodes[static_cast<size_t>(step.index)];
    text.name = quoted(node.name.empty() ? node.op->full_name() : node.name);
    text.category = quoted(node.op->full_name());
  } else if (of.subject == StepSubject::kUnit) {
    const Unit& unit = plan.units[static_cast<size_t>(step.index)];
    text.name = quoted(format_text("{} u{} {}", kind, unit.id, unit.name));
  }
  return text;
}

class LineWriter {
 public:
  LineWriter(const Plan& plan, int rank, int64_t base) : plan_(plan), rank_(rank), base_(base) {}

  std::string write(const TraceRecorder& recorder) {
    out_.reserve((recorder.size() + 16) * kLineBytes);
    name_rows(recorder);
    for (size_t i = 0; i < recorder.size(); ++i) add(recorder.event(i));
    return std::move(out_);
  }

 private:
  // Names the first two rows, and others that have events.
  void name_rows(const TraceRecorder& recorder) {
    constexpr auto kName = R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})";
    constexpr auto kOrder =
        R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})";
    std::array<bool, kRowNames.size()> used{true, true};
    for (size_t i = 0; i < recorder.size(); ++i) {
      const TraceRow row = recorder.event(i).row;
      if (row != TraceRow::kOfStep) used[static_cast<size_t>(number(row))] = true;
    }
    out_ += format_text(kName, "process_name", rank_, 0, format_text("rank {}", rank_));
    for (size_t row = 0; row < used.size(); ++row) {
      if (!used[row]) continue;
      out_ += ",\n" + format_text(kName, "thread_name", rank_, row, kRowNames[row]);
      out_ += ",\n" + format_text(kOrder, rank_, row, row);
    }
  }

  void add(const TraceEvent& event) {
    if (event.row > TraceRow::kCommunication) return add_unit(event);
    if (event.program == nullptr) {
      const bool whole = event.step == kTraceUpdate;
      char name[40];
      const auto end = whole ? fmt::format_to_n(name, sizeof name, "\"update {}\"", event.update)
                             : fmt::format_to_n(name, sizeof name, "\"end of the update\"");
      line({name, end.size}, "\"update\"", whole ? TraceRow::kCompute : TraceRow::kCommunication,
           event);
      return;
    }
    const StepText& text = texts(*event.program)[static_cast<size_t>(event.step)];
    const bool on_cpu = event.row == TraceRow::kOfStep;
    if (on_cpu && !text.shown) return;
    line(text.name, text.category, on_cpu ? text.row : event.row, event);
  }

  std::string of_unit(const TraceEvent& event) const {
    const Unit& unit = plan_.units[static_cast<size_t>(event.step)];
    const char* what = event.row == TraceRow::kHost ? "Update" : "copy";
    return format_text("{} u{} {}", what, unit.id, unit.name);
  }

  // A copy, or the host's work for a unit.
  void add_unit(const TraceEvent& event) {
    const bool host = event.row == TraceRow::kHost;
    const std::string name = event.row == TraceRow::kInputs ? "inputs" : of_unit(event);
    line(quoted(name), host ? "\"Update\"" : "\"copy\"", event.row, event);
  }

  // Perfetto takes an event's begin in microseconds; the digits after the point are nanoseconds.
  void line(std::string_view name, std::string_view category, TraceRow row,
            const TraceEvent& event) {
    const int64_t begin = event.begin - base_, took = event.end - event.begin;
    fmt::format_to(std::back_inserter(out_),
                   ",\n{{\"name\":{},\"cat\":{},\"ph\":\"X\",\"pid\":{},\"tid\":{},"
                   "\"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":{{\"update\":{}}}}}",
                   name, category, rank_, number(row), begin / 1000, begin % 1000, took / 1000,
                   took % 1000, event.update);
  }

  const std::vector<StepText>& texts(const StepProgram& program) {
    std::vector<StepText>& list = texts_[&program];
    if (list.empty()) {
      for (const Step& step : program.schedule.steps) {
        list.push_back(describe(program, plan_, step));
      }
    }
    return list;
  }

  const Plan& plan_;
  int rank_;
  int64_t base_;
  std::string out_;
  std::map<const StepProgram*, std::vector<StepText>> texts_;
};

std::string part_name(const std::string& path, int rank) {
  return format_text("{}.rank{}.part", path, rank);
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file ? Status{} : fault("{}: cannot write the trace: {}", path, std::strerror(errno));
}

// Returns when the first event on any rank began.
Result<int64_t> common_base(const TraceRecorder& recorder, Communicator& communicator) {
  int64_t first = INT64_MAX;
  for (size_t i = 0; i < recorder.size(); ++i) first = std::min(first, recorder.event(i).begin);
  const auto mine = static_cast<double>(first);
  std::vector<double> all(static_cast<size_t>(communicator.size()));
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&mine, 1}, all, {"start of the trace", -1, 0}));
  return static_cast<int64_t>(*std::ranges::min_element(all));
}

}  // namespace

std::string trace_lines(const TraceRecorder& recorder, const Plan& plan, int rank, int64_t base) {
  return LineWriter(plan, rank, base).write(recorder);
}

Result<TraceFile> TraceFile::open(const std::string& path, int rank) {
  TraceFile trace;
  if (path.empty()) return trace;
  const std::string part = part_name(path, rank);
  OFSDP_RETURN_IF_ERROR(make_log_part("--trace", path, part));
  trace.path_ = path;
  trace.part_ = part;
  return trace;
}

TraceFile::~TraceFile() {
  if (!part_.empty()) unlink(part_.c_str());
}

Status TraceFile::write(const TraceRecorder& recorder, const Plan& plan,
                        Communicator& communicator) {
  OFSDP_ASSIGN_OR_RETURN(const int64_t base, common_base(recorder, communicator));
  OFSDP_RETURN_IF_ERROR(write_text(part_, trace_lines(recorder, plan, communicator.rank(), base)));
  OFSDP_RETURN_IF_ERROR(communicator.barrier({"parts of the trace", -1, 0}));
  if (communicator.rank() == 0) OFSDP_RETURN_IF_ERROR(join_parts(communicator.size()));
  return communicator.barrier({"end of the trace", -1, 0});
}

Status TraceFile::join_parts(int ranks) const {
  const std::string whole = path_ + ".part";
  OFSDP_RETURN_IF_ERROR(make_log_part("--trace", path_, whole));
  std::ofstream file(whole, std::ios::trunc);
  file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (int r = 0; r < ranks; ++r) {
    file << (r > 0 ? ",\n" : "") << std::ifstream(part_name(path_, r)).rdbuf();
  }
  file << "\n]}\n";
  file.close();
  if (file && std::rename(whole.c_str(), path_.c_str()) == 0) return {};
  const std::string reason = std::strerror(errno);
  unlink(whole.c_str());
  return fault("{}: cannot write the trace: {}", path_, reason);
}

}  // namespace ofsdp::runtime
