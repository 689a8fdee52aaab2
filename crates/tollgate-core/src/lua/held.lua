-- Twin of held.rs, with a sorted set for a log.
--
-- An entry is a member `id:units` whose score is the moment it was made. One more member names the
-- format, the algorithm and the hold (`1sliding_log 60000000`); its score is the units of all
-- entries, negated, so that it comes before them and nothing ever needs to be added up.
--
-- Rust says what is to be done to a log and leaves doing it to the owner. Here the log is at hand,
-- so what time alone does to it is done when it is looked at, whatever the verdict will be.
--
-- state: key, units of all entries, moment of the newest, and the entries that were taken and are
-- not in the log yet.
local function holding(name, most, hold, end_is_known)
  local marker = '1' .. name .. ' ' .. number_text(hold)
  local marker_of_any_hold = '^1' .. name .. ' (%d+)$'

  local function units_of(member)
    return tonumber(string.match(member, ':(%d+)$'))
  end

  local function newest(key)
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    return tonumber(last[2]), last[1]
  end

  -- Keeps the sum, and sees to it that the key goes when nothing holds any more.
  local function keep(key, units, newest_at)
    if units == 0 then
      redis.call('UNLINK', key)
      return
    end
    redis.call('ZADD', key, number_text(-units), marker)
    if not IS_VIRTUAL then
      redis.call('PEXPIRE', key, ttl_millis(until_passed(NOW, hold, newest_at)))
    end
  end

  local function standing(key, now)
    local state = { key = key, used = 0, newest_at = 0, taken = {} }
    local front = read('ZRANGE', key, 0, 1, 'WITHSCORES') or {}
    if not front[1] then return state end
    -- What had ended under another hold does not come back: the shorter of the two counts.
    local shorter = min(tonumber(string.match(front[1], marker_of_any_hold)) or 0, hold)
    local newest_at = newest(key)
    if now - newest_at >= shorter or shorter == 0 then
      -- All of it has ended, however long it is; or it is another algorithm's or version's.
      redis.call('UNLINK', key)
      return state
    end
    local units, is_changed = -tonumber(front[2]), front[1] ~= marker
    if is_changed then redis.call('ZREM', key, front[1]) end
    if now - tonumber(front[4]) >= shorter then
      local last = number_text(now - shorter)
      for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, 0, last)) do
        units = units - units_of(member)
      end
      redis.call('ZREMRANGEBYSCORE', key, 0, last)
      is_changed = true
    end
    if newest_at > plus(now, shorter) then
      newest_at = plus(now, shorter)
      local latest = number_text(newest_at)
      for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
        redis.call('ZADD', key, latest, member)
      end
      is_changed = true
    end
    if is_changed then keep(key, units, newest_at) end
    state.used, state.newest_at = units, newest_at
    return state
  end

  -- Every entry holds a unit at least, so no more of them are looked at than units must end.
  local function falls_to(room, state, now)
    if not end_is_known then return NONE end
    local used, first = state.used, 1 -- after the marker
    while true do
      local last = first + min(used - room, 100) - 1
      local entries = redis.call('ZRANGE', state.key, first, last, 'WITHSCORES')
      for i = 1, #entries, 2 do
        used = used - units_of(entries[i])
        if used <= room then return until_passed(now, hold, tonumber(entries[i + 1])) end
      end
      if #entries < 2 * (last - first + 1) then break end
      first = last + 1
    end
    for _, entry in ipairs(state.taken) do
      used = used - entry.units
      if used <= room then return until_passed(now, hold, entry.at) end
    end
    return 0
  end

  local function decision(outcome, state, now, retry_after)
    local remaining = max(most - state.used, 0)
    local reset_after, next_after = 0, 0
    if state.used ~= 0 then
      reset_after = until_passed(now, hold, state.newest_at)
      next_after = falls_to(max(most - (remaining + 1), 0), state, now)
    end
    return { outcome, most, remaining, reset_after, next_after, retry_after, 0, 0, 0, 0 }
  end

  local function charged(state, now, cost, id)
    if cost == 0 then return decision(ALLOWED, state, now, NONE), state end
    local at, taken = max(state.newest_at, now), { unpack(state.taken) }
    taken[#taken + 1] = { at = at, id = id, units = cost }
    local after = { key = state.key, used = state.used + cost, newest_at = at, taken = taken }
    local answer = decision(ALLOWED, after, now, NONE)
    answer[CHARGED], answer[CHARGED_AT] = cost, at
    return answer, after
  end

  local function decide(state, now, cost, id)
    if state.used + cost <= most then return charged(state, now, cost, id) end
    if cost > most then return decision(TOO_COSTLY, state, now, NONE), state end
    return decision(DENIED, state, now, falls_to(most - cost, state, now)), state
  end

  -- Twin of Log::push; tells what is used then.
  local function push(key, used, entry)
    local id, units = entry.id, entry.units
    -- As many entries need as many units, so most of the time nobody has to count.
    if used >= LOG_ENTRIES_MAX and redis.call('ZCARD', key) > LOG_ENTRIES_MAX then
      local _, last = newest(key)
      redis.call('ZREM', key, last)
      id, units = string.match(last, '^(%d+):'), units_of(last)
      used = used - units
      units = min(units + entry.units, COUNT_MAX)
    end
    redis.call('ZADD', key, number_text(entry.at), id .. ':' .. number_text(units))
    keep(key, used + units, entry.at)
    return used + units
  end

  local function apply(state)
    local used = state.used
    for _, entry in ipairs(state.taken) do used = used - entry.units end
    for _, entry in ipairs(state.taken) do used = push(state.key, used, entry) end
  end

  -- The limit that the log was written under, as far as the hold goes.
  local function written_under(key)
    local front = read('ZRANGE', key, 0, 0) or {}
    local stored = tonumber(string.match(front[1] or '', marker_of_any_hold) or hold)
    return holding(name, most, stored, end_is_known)
  end

  -- Twin of Logged::give_back. `held` is what the charge holds, since its member is named by it.
  local function give_back(key, now, id, held, units)
    local state = standing(key, now)
    local at = redis.call('ZSCORE', key, id .. ':' .. number_text(held))
    if not at then return 0 end
    redis.call('ZREM', key, id .. ':' .. number_text(held))
    local back = min(units, held)
    if back < held then redis.call('ZADD', key, at, id .. ':' .. number_text(held - back)) end
    keep(key, state.used - back, newest(key))
    return back
  end

  -- Twin of Logged::renew.
  local function renew(key, now, id, held)
    local state = standing(key, now)
    if redis.call('ZREM', key, id .. ':' .. number_text(held)) == 0 then return 0 end
    local newest_at = newest(key)
    push(key, state.used - held, { at = max(newest_at, now), id = id, units = held })
    return 1
  end

  return {
    is_log = true,
    standing = standing, decide = decide, force = charged, apply = apply,
    written_under = written_under, give_back = give_back, renew = renew,
  }
end
