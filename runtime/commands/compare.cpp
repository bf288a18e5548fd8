#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/text.h"
#include "runtime/commands/commands.h"

namespace ofsdp::runtime {

namespace {

using Json = nlohmann::json;

// The rows of the comparison, each with a value for both plans.
class Comparison {
 public:
  Comparison(const ComparedPlan& a, const ComparedPlan& b) : a_(a), b_(b) {}

  std::string text() {
    row("", [](const ComparedPlan& p) { return escaped(base_filename(p.file)); });
    row("strategy",
        [](const ComparedPlan& p) { return std::string(strategy_name(plan(p).strategy)); });
    row("ranks, units", [](const ComparedPlan& p) {
      return format_text("{}, {}", plan(p).world, plan(p).units.size());
    });
    row("batch x forwards x ranks", [](const ComparedPlan& p) {
      const BatchSizes& batch = p.run->settings().batch;
      return format_text("{} x {} x {}", batch.batch_size, batch.grad_accum, plan(p).world);
    });
    bytes("peak of a rank", [](const ComparedPlan& p) { return peak(p); });
    add_shares();
    bytes("received in an update",
          [](const ComparedPlan& p) { return received_bytes(p.run->plan()); });
    if (!a_.report.device && !b_.report.device) add_times();
    return std::move(out_);
  }

 private:
  static constexpr size_t kSharesShown = 8;

  static const Plan& plan(const ComparedPlan& p) { return p.run->plan().shards; }
  static size_t peak(const ComparedPlan& p) { return p.run->plan().memory.planned_bytes(); }

  static size_t share(const ComparedPlan& p, const std::string& key) {
    for (const PeakShare& one : p.report.peak.shares) {
      if (one.key == key) return one.bytes;
    }
    return 0;
  }

  template <typename Value>
  void row(const std::string& label, const Value& value) {
    out_ += format_text("{:<34} {:>20} {:>20}\n", label, value(a_), value(b_));
  }

  // With the change from A to B.
  template <typename Value>
  void numbers(const std::string& label, const Value& value, std::string (*shown)(double)) {
    const auto a = static_cast<double>(value(a_)), b = static_cast<double>(value(b_));
    const std::string change = a > 0 ? format_text("{:+.1f} %", 100 * (b - a) / a) : "";
    out_ += format_text("{:<34} {:>20} {:>20} {:>10}\n", label, shown(a), shown(b), change);
  }

  template <typename Value>
  void bytes(const std::string& label, const Value& value) {
    numbers(label, value, [](double b) { return readable_bytes(static_cast<uint64_t>(b)); });
  }

  template <typename Value>
  void milliseconds(const std::string& label, const Value& value) {
    numbers(label, value, [](double seconds) { return format_text("{:.4g} ms", seconds * 1e3); });
  }

  // The largest kinds of memory, of either plan.
  void add_shares() {
    std::vector<PeakShare> kinds = a_.report.peak.shares;
    for (const PeakShare& of_b : b_.report.peak.shares) {
      const auto same = std::ranges::find_if(
          kinds, [&](const PeakShare& k) { return std::string(k.key) == of_b.key; });
      if (same == kinds.end()) kinds.push_back(of_b);
    }
    const auto larger = [&](const PeakShare& k) {
      return std::max(share(a_, k.key), share(b_, k.key));
    };
    std::ranges::stable_sort(kinds, std::greater(), larger);
    if (kinds.size() > kSharesShown) kinds.resize(kSharesShown);
    for (const PeakShare& kind : kinds) {
      if (larger(kind) == 0) continue;
      bytes(std::string("  ") + kind.label,
            [&](const ComparedPlan& p) { return share(p, kind.key); });
    }
  }

  void add_times() {
    milliseconds("predicted for an update",
                 [](const ComparedPlan& p) { return p.report.update_seconds; });
    milliseconds("  computation", [](const ComparedPlan& p) { return p.report.update_compute; });
    milliseconds("  waiting for communication",
                 [](const ComparedPlan& p) { return p.report.update_exposed; });
  }

  const ComparedPlan& a_;
  const ComparedPlan& b_;
  std::string out_;
};

// The plan's JSON without its schedules.
Json side_json(const ComparedPlan& side) {
  Json json = Json::parse(to_json(side.report, side.run->settings()));
  json.erase("programs");
  json["file"] = side.file;
  json["received_bytes"] = received_bytes(side.run->plan());
  return json;
}

}  // namespace

Result<ComparedPlan> plan_to_compare(const RunContext& context, const std::string& file) {
  ComparedPlan made{.file = file, .run = nullptr, .report = {}};
  OFSDP_ASSIGN_OR_RETURN(made.run, PreparedRun::make(context, ""));
  OFSDP_ASSIGN_OR_RETURN(made.report, make_report(made.run->plan(), made.run->settings()));
  return made;
}

std::string compared_text(const ComparedPlan& a, const ComparedPlan& b, bool json) {
  if (!json) return Comparison(a, b).text();
  const Json all{{"plans", {side_json(a), side_json(b)}}};
  return escaped_json(all.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
}

}  // namespace ofsdp::runtime
