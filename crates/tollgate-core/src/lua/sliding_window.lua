-- Twin of sliding_window.rs.
-- limit: count, period. state: current, previous, number of the window.
local function sliding_window(limit)
  local most, period = limit[1], limit[2]

  -- `a × b ÷ c`, whole and remainder, of an `a` below 2^35 and `b` and `c` below 2^45.
  local function multiply_divide(a, b, c)
    local product = a * b
    if product <= EXACT_MAX then
      local rest = fmod(product, c)
      return (product - rest) / c, rest
    end
    -- Long multiplication, seven bits of `a` at a time from the top. The rest is below 2^45, so
    -- each step stays below 2^45 × 2^7 + 2^7 × 2^45 = 2^53.
    local whole, rest, power = 0, 0, 268435456
    while power >= 1 do
      local digit = div_floor(a, power)
      local part = rest * 128 + digit * b
      rest = fmod(part, c)
      whole = whole * 128 + (part - rest) / c
      a, power = a - digit * power, power / 128
    end
    return whole, rest
  end

  local function anchored(state, now)
    local number = state[3]
    if number * period <= now then return state end
    return { state[1], state[2], min(number, div_floor(now, period) + 1) }
  end

  -- The two counts and the number of the window now, how much of it has passed, and how far the
  -- clock is behind it. A window that was written began before the end of time, so that
  -- number × period is exact.
  local function standing(state, now)
    local current, previous, number = state[1], state[2], state[3]
    local elapsed = now - number * period
    if elapsed < 0 then return current, previous, number, 0, -elapsed end
    if elapsed < period then return current, previous, number, elapsed, 0 end
    if elapsed >= 2 * period then current = 0 end
    number = div_floor(now, period)
    return 0, current, number, now - number * period, 0
  end

  local function estimate(current, previous, elapsed)
    if previous == 0 then return current end
    local whole = multiply_divide(previous, period - elapsed, period)
    return current + whole
  end

  local function faded_at(previous, room)
    if previous <= room then return 0 end
    local whole, part = multiply_divide(room + 1, period, previous)
    if part > 0 then whole = whole + 1 end
    return period + 1 - whole
  end

  local function falls_to(room, current, previous, elapsed, behind)
    local wait
    if current <= room then
      wait = max(faded_at(previous, room - current) - elapsed, 0)
    else
      wait = period - elapsed + faded_at(current, room)
    end
    if wait == 0 then return 0 end
    return wait + behind
  end

  local function decision(outcome, units, current, previous, elapsed, behind)
    local remaining = max(most - units, 0)
    local reset_after, next_after = 0, 0
    if units ~= 0 then
      reset_after = falls_to(0, current, previous, elapsed, behind)
      next_after =
        falls_to(max(most - (remaining + 1), 0), current, previous, elapsed, behind)
    end
    return { outcome, most, remaining, reset_after, next_after, NONE, 0, 0, 0, 0 }
  end

  local function charged(state, now, cost, units)
    local current, previous, number, elapsed, behind = standing(state, now)
    local taken = min(cost, COUNT_MAX - current)
    current = current + taken
    local answer = decision(ALLOWED, units + taken, current, previous, elapsed, behind)
    answer[CHARGED], answer[CHARGED_AT] = taken, number * period + elapsed
    if cost == 0 then return answer, state end
    return answer, { current, previous, number }
  end

  local function decide(state, now, cost)
    state = anchored(state, now)
    local current, previous, _, elapsed, behind = standing(state, now)
    local units = estimate(current, previous, elapsed)
    if units + cost <= most then return charged(state, now, cost, units) end
    if cost > most then
      return decision(TOO_COSTLY, units, current, previous, elapsed, behind), state
    end
    local denial = decision(DENIED, units, current, previous, elapsed, behind)
    denial[RETRY_AFTER] = falls_to(most - cost, current, previous, elapsed, behind)
    return denial, state
  end

  local function force(state, now, cost)
    state = anchored(state, now)
    local current, previous, _, elapsed = standing(state, now)
    return charged(state, now, cost, estimate(current, previous, elapsed))
  end

  local function punish(state, now, cost)
    local _, after = force(state, now, cost)
    return after
  end

  local function refund(state, now, cost, charged_at)
    local windows_ago = state[3] - div_floor(charged_at, period)
    state = anchored(state, now)
    local current, previous = state[1], state[2]
    if windows_ago == 0 then current = max(current - cost, 0) end
    if windows_ago == 1 then previous = max(previous - cost, 0) end
    if current == 0 and previous == 0 then return { 0, 0, 0 } end
    return { current, previous, state[3] }
  end

  local function used(state, now)
    local current, previous, number, elapsed = standing(state, now)
    local whole, part = multiply_divide(previous, period - elapsed, period)
    local units = current + whole
    if units > 0 and part > 0 then units = units + 1 end
    return min(units, COUNT_MAX), number * period + elapsed
  end

  local function with_used(units, now)
    return { units, 0, div_floor(now, period) }
  end

  return {
    letter = 's', first_kept = 2, counters = 3,
    decide = decide, force = force, punish = punish, refund = refund,
    anchored = anchored, used = used, with_used = with_used,
  }
end
