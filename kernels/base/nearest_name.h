// nearest_name: the name that a person probably meant if a name (option, key, column, node) is not
// known.
//
// The nearest name has the fewest letters changed, added, dropped or swapped with their neighbour
// (optimal string alignment distance), at most about a third of the name; else it is the only name
// that begins with a name that was cut short ("batch" for "batch-size"). Case does not count, nor
// does '_' for '-'.
//
// Takes any bytes; returns the name as it is spelled in `known`, the first of equals, or an empty
// string if nothing is near.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ofsdp::base {

std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// "; did you mean 'x'?", or an empty string if nothing is near: the end of an error message.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace ofsdp::base
