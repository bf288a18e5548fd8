// The contact sheet of `fsdp-run data --html`: evenly spaced rows of the columns of images, as a
// run gets them before random changes, each with its class. One file, which needs no network.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/survey.h"

namespace ofsdp::runtime {

inline constexpr int64_t kSheetRows = 48;  // of each part

// Returns the page; empty if no column has pictures.
std::string contact_sheet(const std::string& title, const std::vector<SurveyedPart>& parts);

}  // namespace ofsdp::runtime
