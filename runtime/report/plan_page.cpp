// The page of `fsdp-run plan --html`: plan_page.html with the JSON of the plan, which a script
// there draws as SVG. One file, no network.
#include "runtime/report/plan_page_html.h"
#include "runtime/report/plan_report.h"

namespace ofsdp::runtime {

// "</" would end the script element that holds the JSON.
std::string page(const PlanReport& report, const RunSettings& settings) {
  constexpr std::string_view kPlace = "@PLAN_JSON@";
  std::string data;
  for (const char c : to_json(report, settings)) {
    if (c == '/' && data.ends_with('<')) data += '\\';
    data += c;
  }
  return std::string(kPlanPage).replace(kPlanPage.find(kPlace), kPlace.size(), data);
}

}  // namespace ofsdp::runtime
