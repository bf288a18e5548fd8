// The settings that a resumed run has changed since its checkpoint, by the effective configurations
// of both: each checkpoint keeps one next to its manifest.
//
// Lines that are no "key: value" are passed over.
#pragma once

#include <string>
#include <string_view>

namespace ofsdp::runtime {

// The file of a checkpoint's folder that has the run's effective configuration.
inline constexpr const char* kSavedConfiguration = "config.yaml";

// True of a key of a configuration whose value changes the trained weights, whatever the ranks and
// the device. Not of data, --seed, --shuffle and --drop-last, which the manifest has, nor of the
// run's length (--steps, --epochs).
bool changes_weights(std::string_view key);

// Returns "lr 5.0 (was 0.05), ..." of the keys that both configurations have; "" if none differs.
// The run's length is there if the schedule of the rate follows it.
std::string changed_settings_line(const std::string& saved, const std::string& present);

}  // namespace ofsdp::runtime
