// @TITLE@, by kerncast. Generated: `kerncast export` makes it again.
//
//     @PREFIX@::Selector selector;
//     @PREFIX@::Problem problem;
//     ...
//     if (auto answer = selector.select(problem)) run(answer.config);
//
// Only one thread at a time may use a selector: give each thread its own.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "@PREFIX@.h"

namespace @PREFIX@ {

enum class Status {
@STATUSES@
};

enum class Tier {
@TIERS@
};

enum class Pin {
    none = KERNCAST_PIN_NONE,
    decided = KERNCAST_PIN_DECIDED,
    not_applied = KERNCAST_PIN_NOT_APPLIED,
};

@PROBLEM_STRUCT@
@CONFIG_STRUCT@
// `config` is what to run when the status is ok, and a fallback when it is out_of_range and `candidate` is not -1.
struct Answer {
    Status status = Status::bad_input;
    Tier tier = Tier::none;
    std::int32_t candidate = -1;
    Config config;
    std::optional<double> time_ns, lower_ns, upper_ns, efficiency;
    Pin pin = Pin::none;
    std::string label, message;

    explicit operator bool() const { return status == Status::ok; }

    static Answer from_c(const kerncast_answer &c) {
        const auto known = [](double value) { return value >= 0.0 ? std::optional<double>(value) : std::nullopt; };
        return {static_cast<Status>(c.status), static_cast<Tier>(c.tier), c.candidate, Config::from_c(c.config),
                known(c.time_ns), known(c.lower_ns), known(c.upper_ns), known(c.efficiency), static_cast<Pin>(c.pin),
                c.label ? c.label : "", c.message};
    }
};

class Selector {
public:
    // Throws if header and library are from different exports, or the tables are damaged.
    Selector() {
        kerncast_context *made = nullptr;
        const kerncast_status status = kerncast_create(&made);
        if (status != KERNCAST_OK) throw std::runtime_error(std::string("@PREFIX@: ") + kerncast_status_name(status));
        context_.reset(made);
    }

    Answer select(const Problem &problem, Tier tier = Tier::automatic) {
        const kerncast_problem asked = problem.to_c();
        kerncast_answer answer;
        kerncast_select(context_.get(), &asked, static_cast<kerncast_tier>(tier), &answer);
        return Answer::from_c(answer);
    }

    std::vector<Answer> rank(const Problem &problem, std::size_t count, Tier tier = Tier::automatic) {
        const kerncast_problem asked = problem.to_c();
        std::vector<kerncast_answer> answers(count ? count : 1);
        std::size_t found = 0;
        const kerncast_status status = kerncast_rank(context_.get(), &asked, static_cast<kerncast_tier>(tier), answers.data(),
                                                     answers.size(), &found);
        std::vector<Answer> result;
        for (std::size_t i = 0; i < (status == KERNCAST_OK ? found : 1); i++) result.push_back(Answer::from_c(answers[i]));
        return result;
    }

    // One value for each candidate: whether it may be chosen. False: not as many values as candidates.
    bool set_available(const std::vector<bool> &available) {
        const std::vector<unsigned char> bytes(available.begin(), available.end());
        return kerncast_set_available(context_.get(), bytes.data(), bytes.size()) == KERNCAST_OK;
    }

    bool deny(std::int32_t candidate) { return kerncast_deny(context_.get(), candidate) == KERNCAST_OK; }

    // Problems that agree with `problem` in all that it sets get this config; -1 leaves them to the model again. The answer
    // is not ok if the config cannot run them, and says why.
    Answer pin(const Problem &problem, std::int32_t candidate) {
        const kerncast_problem pinned = problem.to_c();
        kerncast_answer answer;
        kerncast_pin(context_.get(), &pinned, candidate, &answer);
        return Answer::from_c(answer);
    }

    void clear_overrides() { kerncast_clear_overrides(context_.get()); }

    static std::string label(const Problem &problem, std::int32_t candidate) {
        const kerncast_problem asked = problem.to_c();
        return kerncast_label_for(&asked, candidate);
    }

    static Answer predict(const Problem &problem, const Config &config) {
        const kerncast_problem asked = problem.to_c();
        const kerncast_config chosen = config.to_c();
        kerncast_answer answer;
        kerncast_predict(&asked, &chosen, &answer);
        return Answer::from_c(answer);
    }

    std::string query(std::string_view text) {
        std::string out(4096, '\0');
        std::size_t needed = 0;
        const auto ask = [&] {
            return kerncast_query_json(context_.get(), text.data(), text.size(), out.data(), out.size(), &needed);
        };
        while (ask() == KERNCAST_TOO_SMALL) out.resize(needed + 1);
        out.resize(needed ? needed - 1 : 0); // `needed` counts the closing zero
        return out;
    }

private:
    struct Destroy {
        void operator()(kerncast_context *context) const { kerncast_destroy(context); }
    };
    std::unique_ptr<kerncast_context, Destroy> context_;
};

} // namespace @PREFIX@
